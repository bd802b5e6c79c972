// A real GPU for a test or a bench, with an executor in front.
#ifndef ATTND_TESTS_GPU_GPU_H_
#define ATTND_TESTS_GPU_GPU_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/executor/cuda_device.h"
#include "server/executor/cuda_memory.h"
#include "server/executor/devices.h"
#include "server/executor/executor.h"
#include "server/memory/slab_allocator.h"

namespace attnd::testing {

// Pinned memory for payloads or answers.
inline std::unique_ptr<server::BufferPool> PinnedPool(std::shared_ptr<server::Cuda> cuda,
                                                      int64_t budget_bytes) {
  return std::make_unique<server::BufferPool>(
      budget_bytes, std::make_shared<server::SlabAllocator>(
                        server::SlabOptions{budget_bytes, int64_t{64} << 20},
                        std::make_shared<server::PinnedBlocks>(std::move(cuda))));
}

// A queue, an executor and a device that others own.
class Served {
 public:
  Served(server::Device* device, server::BufferPool* answers,
         const server::SchedulerOptions& options = {})
      : scheduler_(options, &clock_, &metrics_),
        executor_(std::make_unique<server::Executor>(
            server::ExecutorOptions{[this](const absl::Status& status) { lost_ = status; }},
            &scheduler_, device, answers, &clock_, &metrics_)) {}
  ~Served() { Drain(); }

  void Drain() {
    scheduler_.Drain();
    executor_.reset();
  }
  server::Scheduler& scheduler() { return scheduler_; }
  // After Drain().
  const absl::Status& lost() const { return lost_; }

 private:
  server::SteadyClock clock_;
  server::Metrics metrics_;
  absl::Status lost_;
  server::Scheduler scheduler_;
  std::unique_ptr<server::Executor> executor_;
};

}  // namespace attnd::testing

#endif  // ATTND_TESTS_GPU_GPU_H_
