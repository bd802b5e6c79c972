// Tensors of callers that are used where they lie: on a GPU as exported memory is, on a CPU as
// memory regions are.
#ifndef ATTND_TESTS_BENCH_CALLER_TENSORS_H_
#define ATTND_TESTS_BENCH_CALLER_TENSORS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/executor/cuda.h"
#include "server/request.h"

namespace attnd::bench {

// Q, K and V, which all callers share, and an O for each of them, in one block.
class CallerTensors {
 public:
  // As `like` has them. `cuda` null: the host's memory. Fails as `cuda` does.
  static absl::StatusOr<std::unique_ptr<CallerTensors>> Create(std::shared_ptr<server::Cuda> cuda,
                                                               const server::Request& like,
                                                               int callers);
  ~CallerTensors();
  CallerTensors(const CallerTensors&) = delete;
  CallerTensors& operator=(const CallerTensors&) = delete;

  // Makes the request, whose problems and output are there, that caller's. The tensors outlive it;
  // a caller has one request at a time.
  void LendTo(int caller, server::Request& request) const;

 private:
  CallerTensors(std::shared_ptr<server::Cuda> cuda, const server::Request& like);
  absl::Status Allocate(int64_t size_bytes);
  absl::Status CopyInputs(const server::Request& like);

  const std::shared_ptr<server::Cuda> cuda_;
  const int64_t q_bytes_;
  const int64_t kv_bytes_;
  const int64_t o_bytes_;
  std::vector<unsigned char> host_;  // where there is no `cuda`
  unsigned char* block_ = nullptr;
};

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_CALLER_TENSORS_H_
