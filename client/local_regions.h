// Regions that the client makes by itself, for calls whose tensors lie elsewhere.
#ifndef ATTND_CLIENT_LOCAL_REGIONS_H_
#define ATTND_CLIENT_LOCAL_REGIONS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/region.h"
#include "kernels/sync.h"

namespace attnd::client {

// A region serves one call at a time and is kept for the next, so that a steady load touches no
// fresh page.
//
// Invariants.
//  1. The regions out and those kept are `held_bytes_` together, at most the options'
//     max_region_bytes.
//  2. Kept regions are of the instance `instance_id_`.
// Thread-safe.
class LocalRegions {
 public:
  // Asks the server; UNAVAILABLE and the like if it does not answer.
  using InstanceId = std::function<absl::StatusOr<std::string>(absl::Duration timeout)>;

  LocalRegions(const ClientOptions& options, InstanceId instance_id)
      : options_(options), ask_instance_id_(std::move(instance_id)) {}

  // One of at least so many bytes. Where the server has turned out not to be on this host, or to
  // have no more room, it is not asked again for a while, and the error is the first one's.
  // RESOURCE_EXHAUSTED also beyond max_region_bytes. Errors else as LocalRegion::Create's.
  absl::StatusOr<std::unique_ptr<LocalRegion>> Take(int64_t size_bytes, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Keeps it; nobody uses it any more, the server included.
  void GiveBack(std::unique_ptr<LocalRegion> region) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends it; the server may still be using it.
  void Drop(std::unique_ptr<LocalRegion> region) ABSL_LOCKS_EXCLUDED(mutex_);

  // As Take, but the caller's own: it counts nowhere.
  absl::StatusOr<std::unique_ptr<LocalRegion>> New(int64_t size_bytes, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for the caller's own memory on a GPU.
  absl::StatusOr<std::unique_ptr<LocalRegion>> Share(const CudaMemory& memory,
                                                     absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Clock = std::chrono::steady_clock;

  // `make` is given where the server is, and is tried anew if that is another instance by now.
  using Make =
      std::function<absl::StatusOr<std::unique_ptr<LocalRegion>>(const LocalRegionOptions&)>;
  absl::StatusOr<std::unique_ptr<LocalRegion>> AtServer(absl::Duration timeout, const Make& make)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::unique_ptr<LocalRegion> TakeKept(int64_t size_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Count(int64_t size_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Uncount(int64_t size_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::string> AskInstanceId(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of which the server holds nothing any more.
  void ForgetInstance() ABSL_LOCKS_EXCLUDED(mutex_);

  const ClientOptions options_;
  const InstanceId ask_instance_id_;

  Mutex mutex_;
  std::string instance_id_ ABSL_GUARDED_BY(mutex_);                         // empty: not known
  std::vector<std::unique_ptr<LocalRegion>> kept_ ABSL_GUARDED_BY(mutex_);  // used last at the end
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);         // what it was the last time, ...
  Clock::time_point ask_again_ ABSL_GUARDED_BY(mutex_);  // ... and until when that holds
};

// A call whose tensors have been copied into a region.
class StagedCall {
 public:
  // Copies Q, K and V. `request` names no regions; its tensors' data is not null where there is
  // some. Errors of LocalRegions::Take. `regions` outlives the call.
  static absl::StatusOr<std::unique_ptr<StagedCall>> Stage(LocalRegions& regions,
                                                           const AttentionRequest& request,
                                                           absl::Duration timeout);
  ~StagedCall();

  // The same problem, in the region.
  const AttentionRequest& request() const { return request_; }

  // Once, with the call's end: copies the outputs into the result, if it is one.
  void Finish(absl::StatusOr<AttentionResult>& result);

 private:
  StagedCall(LocalRegions& regions, const AttentionRequest& request)
      : regions_(regions),
        request_(request),
        o_data_(request.o_place ? request.o_place->data : nullptr) {}

  LocalRegions& regions_;
  AttentionRequest request_;
  void* const o_data_;  // where O is to go; null: into the result
  std::unique_ptr<LocalRegion> region_;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_LOCAL_REGIONS_H_
