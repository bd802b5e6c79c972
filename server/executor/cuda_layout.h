// How a request lies in a GPU's memory, and how a batch is cut into slices: arithmetic only, no
// CUDA.
#ifndef ATTND_SERVER_EXECUTOR_CUDA_LAYOUT_H_
#define ATTND_SERVER_EXECUTOR_CUDA_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/backend.h"
#include "server/executor/cuda.h"
#include "server/request.h"

namespace attnd::server {

// Bases of tensors on the device.
inline constexpr int64_t kDeviceAlignmentBytes = 256;
// Rows there: what kernels load at once.
inline constexpr int64_t kRowAlignmentBytes = 16;

// A tensor in host memory is rows of `row_bytes` one after the other, whatever its axes' order; its
// copy on the device is the same rows in the same order, `pitch_bytes` apart.
struct TensorPlace {
  int64_t offset_bytes = 0;  // in the request's block
  int64_t rows = 0;
  int64_t row_bytes = 0;
  int64_t pitch_bytes = 0;

  bool dense() const { return pitch_bytes == row_bytes; }
  int64_t host_bytes() const { return rows * row_bytes; }
  int64_t device_bytes() const { return rows * pitch_bytes; }
};

// All that a request needs there, as one block. Tensors that lie on the GPU already have no rows,
// and the pitch that they have.
struct RequestPlace {
  TensorPlace q;
  TensorPlace k;
  TensorPlace v;
  TensorPlace slopes;
  TensorPlace o;
  TensorPlace lse;  // no rows if not wanted
  int64_t size_bytes = 0;
};
RequestPlace PlaceRequest(const Request& request);

// Where the tensors are: on the host, or on the device. Null where there is nothing.
struct TensorBases {
  unsigned char* q = nullptr;
  unsigned char* k = nullptr;
  unsigned char* v = nullptr;
  unsigned char* slopes = nullptr;
  unsigned char* o = nullptr;
  unsigned char* lse = nullptr;
};
TensorBases BasesIn(unsigned char* block, const RequestPlace& place);
TensorBases BasesOnHost(const Request& request, const Buffer& o, const Buffer& lse);
// Of the tensors that lie on the GPU already, `host` is what the device is to use.
void UseInPlace(const GpuTensors& tensors, const TensorBases& host, TensorBases& device);

// A part of a batch: problems [slot_begin, slot_end) of request number `request`; of a single one,
// perhaps only some of its batch entries and KV heads, with the query heads of their groups.
struct Piece {
  int request = 0;
  int64_t slot_begin = 0;
  int64_t slot_end = 0;
  bool is_whole_request = false;
  bool is_whole_slot = true;
  // Of the one slot, if it is not whole.
  int64_t batch_begin = 0;
  int64_t batch_end = 0;
  int64_t kv_head_begin = 0;
  int64_t kv_head_end = 0;
};
using Slice = std::vector<Piece>;

// A slice ends when it has both. So that slices are worth their launch (some 20 us of the host for
// 150 us of the bus), and that two of them, which run side by side, fill the GPU: 128 tiles of 128
// rows are about half of the blocks that run at once on 132 processors.
struct SliceSize {
  int64_t bytes = int64_t{8} << 20;
  int64_t query_rows = 16384;
};

// Cuts at the edges of requests, sequences, batch entries and KV heads' groups, in order.
// Everything is in exactly one piece. A request of less than two slices is one piece.
std::vector<Slice> CutIntoSlices(absl::Span<const Request* const> requests, const SliceSize& size);

// The copies that bring a piece's inputs to the device, without slopes; those that bring its
// outputs back.
void AppendUploads(const Request& request, const RequestPlace& place, const Piece& piece,
                   const TensorBases& host, const TensorBases& device,
                   std::vector<CudaCopy>& copies);
void AppendDownloads(const Request& request, const RequestPlace& place, const Piece& piece,
                     const TensorBases& host, const TensorBases& device,
                     std::vector<CudaCopy>& copies);

// The piece's problems. `plans` has one for each slot: a piece has the plan of the whole problem,
// and so its bits.
void AppendTasks(const Request& request, const RequestPlace& place, const Piece& piece,
                 const TensorBases& device, absl::Span<const kernels::KernelPlan> plans,
                 std::vector<kernels::AttentionTask>& tasks);

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_CUDA_LAYOUT_H_
