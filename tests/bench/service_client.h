// The callers of service_bench: each transport has a process of its own, so that none has another's
// heap or malloc settings. The bench runs itself as one, and asks it by lines on stdin.
#ifndef ATTND_TESTS_BENCH_SERVICE_CLIENT_H_
#define ATTND_TESTS_BENCH_SERVICE_CLIENT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/service_process.h"
#include "tests/bench/service_transport.h"

namespace attnd::bench {

// The process: answers its lines until stdin ends. Returns the exit status.
int RunClient(const TransportEntry& entry, const std::string& address);

// The bench's end of one.
class ClientProcess {
 public:
  static absl::StatusOr<std::unique_ptr<ClientProcess>> Start(const TransportEntry& entry,
                                                              const std::string& address);

  struct Times {
    double run_us = 0;  // the server's time for the kernel, of the last call; 0 if it tells none
    std::vector<double> call_us;
  };
  // At least one call of `bytes` each way, until `min_time_ms` have passed.
  absl::StatusOr<Times> Time(int64_t bytes, int min_time_ms);
  // Small calls a second, with so many in flight.
  absl::StatusOr<double> SmallCallsPerS(int in_flight, int time_ms);
  // See SmallBesideBulkUs.
  absl::StatusOr<double> SmallBesideBulk(int64_t bulk_bytes, bool one_channel, int time_ms);

 private:
  explicit ClientProcess(std::unique_ptr<ChildProcess> process) : process_(std::move(process)) {}
  absl::StatusOr<std::vector<double>> Ask(const std::string& line);

  const std::unique_ptr<ChildProcess> process_;
};

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_SERVICE_CLIENT_H_
