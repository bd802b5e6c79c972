// A family's kernels on one device, and how a list of problems becomes a launch of one of them.
#ifndef ATTND_KERNELS_CUDA_LAUNCHER_H_
#define ATTND_KERNELS_CUDA_LAUNCHER_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/instance.h"
#include "kernels/cuda/launch_list.h"
#include "kernels/cuda/launch_memory.h"

namespace attnd::kernels::cuda {

// Belongs to one backend. Calls come from one thread at a time, launches go to one stream at a
// time.
class Launcher {
 public:
  // On the calling thread's current device, with those of `list` that it can run.
  static absl::StatusOr<std::unique_ptr<Launcher>> Create(InstanceList list);

  // By name, ready to be launched.
  const std::map<std::string, const Instance*>& instances() const { return instances_; }

  // For the calling thread, before anything that is done for a launch.
  absl::Status MakeCurrent() const {
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    return absl::OkStatus();
  }

  // One launch in the stream's order. Params is the family's parameter block: an array
  // inline_problems of Entry, and the fields of LaunchParams (params.h). Sorts the problems.
  template <class Params, class Entry>
  absl::Status Launch(const Instance& instance, std::vector<Entry>& problems, cudaStream_t stream) {
    Params params = {};
    params.n_items = DealItems(problems, instance.q_tile);
    params.n_problems = static_cast<int>(problems.size());
    params.next_item = memory_->next_item();
    params.poisoned_tiles = memory_->poisoned_tiles();
    if (problems.size() <= std::size(params.inline_problems)) {
      std::copy(problems.begin(), problems.end(), params.inline_problems);
    } else {
      absl::StatusOr<const void*> uploaded =
          memory_->Upload(problems.data(), problems.size() * sizeof(Entry), stream);
      if (!uploaded.ok()) return uploaded.status();
      params.problems = static_cast<const Entry*>(*uploaded);
    }
    const int64_t slots = int64_t{multiprocessors_} * instance.blocks_per_multiprocessor;
    const int grid = static_cast<int>(std::min(params.n_items, slots));
    void* arguments[] = {&params};
    ATTND_CUDA_RETURN_IF_ERROR(cudaLaunchKernel(instance.symbol, dim3(grid), dim3(instance.threads),
                                                arguments, instance.shared_bytes, stream));
    return absl::OkStatus();
  }

 private:
  Launcher() = default;

  int device_ = 0;
  int multiprocessors_ = 0;
  std::map<std::string, const Instance*> instances_;
  std::unique_ptr<LaunchMemory> memory_;
};

}  // namespace attnd::kernels::cuda

#endif  // ATTND_KERNELS_CUDA_LAUNCHER_H_
