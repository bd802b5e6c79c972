// Where the rows of one KV head lie. Kernels ask this and never compute a K or V address
// themselves, so that paged K/V becomes a change of this file alone.
#ifndef ATTND_KERNELS_KV_VIEW_H_
#define ATTND_KERNELS_KV_VIEW_H_

#include <cstdint>

namespace attnd::kernels {

struct KvView {
  const unsigned char* base = nullptr;
  int64_t row_stride_bytes = 0;

  // Row `key` of this head. 64-bit arithmetic: offsets pass 2^31.
  __attribute__((always_inline)) const void* Row(int64_t key) const {
    return base + key * row_stride_bytes;
  }
};

__attribute__((always_inline)) inline KvView MakeKvView(const void* tensor, int64_t offset_elems,
                                                        int64_t row_stride_elems,
                                                        int64_t element_bytes) {
  return {static_cast<const unsigned char*>(tensor) + offset_elems * element_bytes,
          row_stride_elems * element_bytes};
}

}  // namespace attnd::kernels

#endif  // ATTND_KERNELS_KV_VIEW_H_
