// The ways of sending bytes to another process and getting as many back that service_bench
// compares.
#ifndef ATTND_TESTS_BENCH_SERVICE_TRANSPORT_H_
#define ATTND_TESTS_BENCH_SERVICE_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace attnd::bench {

// A caller's end of one transport. One thread.
class Transport {
 public:
  virtual ~Transport() = default;
  // From now on calls carry `bytes` each way; with attnd as Q and O (K and V are one key a head).
  virtual void Prepare(int64_t bytes) = 0;
  // One call, there and back. In *run_us, if the server tells, its time for the kernel.
  virtual absl::Status Call(double* run_us) = 0;
  // One call that does not block; `done` is called once, on any thread, and may start the next.
  virtual void StartCall(std::function<void(const absl::Status&)> done) = 0;
};

enum class Peer { kNone, kAttnd, kSyncEcho, kCallbackEcho, kRawEcho, kSocket };

struct TransportEntry {
  const char* name;
  Peer peer;
  // A row of the table of sizes; the others serve the small calls only.
  bool has_row;
  // malloc in the client's process as attnd's tools have it.
  bool tunes_malloc;
  absl::StatusOr<std::unique_ptr<Transport>> (*connect)(const std::string& address);
};

// The table of all: those of attnd, then the baselines. Adding one is a line.
const std::vector<TransportEntry>& Transports();
// Null if there is none of this name.
const TransportEntry* FindTransport(const std::string& name);

// The median of 4 KB calls to an attnd, in us from the moment each was due, one every 4 ms, while
// the same client keeps one call of `bulk_bytes` (0: none) in flight; `one_channel`: on the same
// connection.
absl::StatusOr<double> SmallBesideBulkUs(const std::string& address, int64_t bulk_bytes,
                                         bool one_channel, absl::Duration duration);

inline constexpr int64_t kSmallBytes = 4096;

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_SERVICE_TRANSPORT_H_
