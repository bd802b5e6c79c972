#include "server/request.h"

namespace attnd::server {

kernels::AttentionArgs BindToHost(const Request& request, const ProblemSlot& slot, const Buffer& o,
                                  const Buffer& lse) {
  const int64_t element_bytes = kernels::SizeBytes(slot.problem.dtype);
  kernels::AttentionArgs args;
  args.q = request.q.data() + slot.q_offset_elems * element_bytes;
  args.k = request.k.data() + slot.k_offset_elems * element_bytes;
  args.v = request.v.data() + slot.v_offset_elems * element_bytes;
  args.o = o.data() + slot.o_offset_elems * element_bytes;
  args.q_strides = slot.q_strides;
  args.k_strides = slot.k_strides;
  args.v_strides = slot.v_strides;
  args.o_strides = slot.o_strides;
  if (request.output.want_lse) {
    args.lse = reinterpret_cast<float*>(lse.data()) + slot.lse_offset_elems;
    args.lse_batch_stride = slot.lse_batch_stride;
    args.lse_head_stride = slot.lse_head_stride;
  }
  if (slot.problem.alibi) args.alibi_slopes = request.alibi_slopes.data();
  return args;
}

}  // namespace attnd::server
