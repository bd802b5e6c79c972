// Copies of tensors that are larger than the caches.
#ifndef ATTND_KERNELS_COPY_H_
#define ATTND_KERNELS_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace attnd {

// A tensor of this size is not in the caches any more when it is read again, on most machines.
inline constexpr int64_t kBeyondCachesBytes = int64_t{32} << 20;

// memcpy past the caches where the processor can: the lines written are neither fetched first, nor
// do they push out what is in use. Whole lines only; the ends go as usual.
inline void CopyBeyondCaches(void* to, const void* from, size_t count) {
#if defined(__x86_64__)
  constexpr size_t kLine = 64;
  auto* out = static_cast<unsigned char*>(to);
  const auto* in = static_cast<const unsigned char*>(from);
  const size_t head = -reinterpret_cast<uintptr_t>(out) % kLine;
  if (count >= head + kLine) {
    std::memcpy(out, in, head);
    size_t at = head;
    for (; at + kLine <= count; at += kLine) {
      __m128i parts[4];
      std::memcpy(parts, in + at, kLine);
      auto* const line = reinterpret_cast<__m128i*>(out + at);
      for (int i = 0; i < 4; ++i) _mm_stream_si128(line + i, parts[i]);
    }
    _mm_sfence();  // seen by whoever is told that the copy is there
    to = out + at;
    from = in + at;
    count -= at;
  }
#endif
  std::memcpy(to, from, count);
}

}  // namespace attnd

#endif  // ATTND_KERNELS_COPY_H_
