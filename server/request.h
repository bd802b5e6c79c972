// What passes between the stages of a call:
//
//   bytes -> wire::Decode -> Request -> Scheduler -> Batch -> Executor -> Answer -> wire::Encode ->
//   bytes
#ifndef ATTND_SERVER_REQUEST_H_
#define ATTND_SERVER_REQUEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "kernels/attention.h"
#include "server/clock.h"
#include "server/memory/buffer_pool.h"
#include "server/regions/region_leases.h"

namespace attnd::server {

// Who calls: from the connection, never from the message.
struct Caller {
  std::string tenant = "default";
  absl::optional<uint32_t> uid;  // known on a Unix socket with credentials only
  bool is_local = false;         // same host: loopback or a Unix socket
};

// One problem of a request, its tensors as offsets in elements into the request's buffers (and the
// answer's), so that whoever binds it to memory chooses the memory.
struct ProblemSlot {
  kernels::AttentionProblem problem;
  int64_t q_offset_elems = 0;
  int64_t k_offset_elems = 0;
  int64_t v_offset_elems = 0;
  int64_t o_offset_elems = 0;
  int64_t lse_offset_elems = 0;
  kernels::Strides q_strides;
  kernels::Strides k_strides;
  kernels::Strides v_strides;
  kernels::Strides o_strides;
  int64_t lse_batch_stride = 0;
  int64_t lse_head_stride = 0;
};

// The answer's tensors, as they go on the wire.
struct OutputSpec {
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<int64_t> o_shape;
  int64_t o_bytes = 0;
  bool want_lse = false;
  std::vector<int64_t> lse_shape;
  int64_t lse_bytes = 0;  // 0 unless wanted
  // Where in the caller's memory they go; null: into memory of the server, and with the answer.
  unsigned char* o_place = nullptr;
  unsigned char* lse_place = nullptr;

  // What goes with the answer.
  int64_t sent_o_bytes() const { return o_place == nullptr ? o_bytes : 0; }
  int64_t sent_lse_bytes() const { return lse_place == nullptr ? lse_bytes : 0; }
  int64_t sent_bytes() const { return sent_o_bytes() + sent_lse_bytes(); }
};

// Tensors that lie on a GPU, in memory of the caller's, and stay there.
struct GpuTensors {
  static constexpr int kNoDevice = -1;

  int device = kNoDevice;  // of the server's: the one that computes the request
  bool q = false;
  bool k = false;
  bool v = false;
  bool o = false;
  bool lse = false;
  int64_t size_bytes = 0;  // of all of them
  // Events of the caller's that the device waits for before it looks at them.
  std::vector<void*> ready{};
};

// Immutable once decoded; everything in it has been checked. Owns its bytes, or has leases on them.
struct Request {
  std::string request_id;
  Caller caller;
  int priority = 0;
  TimePoint arrival{};
  TimePoint deadline = kNever;

  // One for a dense request, one a sequence for a packed one; none for a packed request without
  // sequences.
  std::vector<ProblemSlot> problems;
  Buffer q;
  Buffer k;
  Buffer v;
  std::vector<float> alibi_slopes;
  OutputSpec output;

  // On the tensors that lie in memory regions: of those, q, k and v are lent. Null if there is
  // none.
  std::unique_ptr<RegionLeases> leases;
  int64_t leased_input_bytes = 0;  // of payload_bytes()
  GpuTensors gpu;                  // of those that are leased
  // Copied from the caller's shared memory, of payload_bytes(), and to it, of answer_bytes().
  int64_t shm_input_bytes = 0;
  int64_t shm_output_bytes = 0;

  int64_t payload_bytes() const { return q.size_bytes() + k.size_bytes() + v.size_bytes(); }
  int64_t answer_bytes() const { return output.o_bytes + output.lse_bytes; }
  // Of each, what comes and goes with messages.
  int64_t received_bytes() const { return payload_bytes() - leased_input_bytes - shm_input_bytes; }
  int64_t sent_bytes() const { return output.sent_bytes() - shm_output_bytes; }
  // Of both, what takes memory of the server's: not what lies in regions.
  int64_t held_bytes() const { return payload_bytes() - leased_input_bytes + output.sent_bytes(); }
};

// Microseconds; what proto Timing says of each.
struct Timing {
  int64_t queue_us = 0;
  int64_t upload_us = 0;
  int64_t run_us = 0;
  int64_t download_us = 0;
  int64_t total_us = 0;
};

// Owns the answer's bytes, exactly output.sent_o_bytes() and output.sent_lse_bytes() of them.
struct Answer {
  Buffer o;
  Buffer lse;
  Timing timing;
  std::string backend;
  std::string kernel;  // of the request's first problem
  std::string device;
  uint64_t batch_id = 0;
  int64_t batch_size = 0;  // requests that ran together
};

// The slot's problem on host memory: inputs in the request's buffers, outputs at `o` and `lse`
// (null if not wanted). The plan is left for the backend to fill in.
kernels::AttentionArgs BindToHost(const Request& request, const ProblemSlot& slot, const Buffer& o,
                                  const Buffer& lse);

}  // namespace attnd::server

#endif  // ATTND_SERVER_REQUEST_H_
