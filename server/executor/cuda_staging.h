// The small tensors of a batch, together in one copy each way.
#ifndef ATTND_SERVER_EXECUTOR_CUDA_STAGING_H_
#define ATTND_SERVER_EXECUTOR_CUDA_STAGING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/executor/cuda.h"
#include "server/executor/cuda_layout.h"

namespace attnd::server {

// A copy beside others costs the host half a microsecond and the bus one; memcpy moves this much in
// about 3. What is gathered here need not be pinned, and pads its rows on the way.
inline constexpr int64_t kStagedTensorBytes = 32 << 10;
// Each way, for one batch: 64 requests of a few small tensors.
inline constexpr int64_t kStagingBytes = 2 << 20;

// Pinned memory beside as much of the device's, for each direction. Used by one batch at a time,
// from Reset() on.
class Staging {
 public:
  static absl::StatusOr<std::unique_ptr<Staging>> Create(std::shared_ptr<Cuda> cuda);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void Reset();

  // Takes a tensor in now; where it will be on the device, or null if it is too large or there is
  // no room.
  unsigned char* AddInput(const TensorPlace& tensor, const unsigned char* host);
  // Where a tensor may be computed whose bytes go to `host` with Deliver(); null as above.
  unsigned char* AddOutput(const TensorPlace& tensor, unsigned char* host);
  // The tensors for `host` are not wanted any more.
  void Drop(const unsigned char* host);

  // What is to be copied before the batch runs, and after it: one copy, or none.
  void AppendUpload(std::vector<CudaCopy>& copies) const;
  void AppendDownload(std::vector<CudaCopy>& copies) const;
  // After the download.
  void Deliver() const;

 private:
  struct Area {
    unsigned char* pinned = nullptr;
    unsigned char* device = nullptr;
    int64_t used_bytes = 0;
  };
  struct Output {
    TensorPlace tensor;
    int64_t offset_bytes = 0;
    unsigned char* host = nullptr;
  };

  explicit Staging(std::shared_ptr<Cuda> cuda) : cuda_(std::move(cuda)) {}
  absl::Status Allocate(Area& area) const;
  // -1 if there is no room.
  static int64_t Place(Area& area, const TensorPlace& tensor);

  const std::shared_ptr<Cuda> cuda_;
  Area up_;
  Area down_;
  std::vector<Output> outputs_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_CUDA_STAGING_H_
