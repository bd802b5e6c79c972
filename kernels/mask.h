// Masks: which keys a row may see. A new mask is a struct here with a Resolve(), and a member of
// MaskSpec; no kernel changes.
//
// Every mask of this file is a band around the diagonal: row i sees keys j with i + lo <= j <= i +
// hi. Bands combine by intersection, and a row's visible keys are one contiguous range, which
// kernels rely on.
#ifndef ATTND_KERNELS_MASK_H_
#define ATTND_KERNELS_MASK_H_

#include <cstdint>

// Compiled into translation units of several instruction sets: always inlined, so that no copy
// built for a newer one is ever the copy that the linker keeps.
#if defined(__CUDACC__)
#define ATTND_MASK_INLINE __host__ __device__ __forceinline__ constexpr
#else
#define ATTND_MASK_INLINE __attribute__((always_inline)) inline constexpr
#endif

namespace attnd::kernels {

// Far beyond any length, and far enough from the edge of int64 that sums with lengths do not
// overflow.
inline constexpr int64_t kUnbounded = int64_t{1} << 60;

// Keys [begin, end); empty when begin >= end.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
  ATTND_MASK_INLINE bool empty() const { return begin >= end; }
  ATTND_MASK_INLINE int64_t size() const { return begin < end ? end - begin : 0; }
  friend constexpr bool operator==(const KeyRange&, const KeyRange&) = default;
};

// A resolved mask. Lengths are >= 0 and < kUnbounded; rows are in [0, q_len).
struct Band {
  int64_t lo = -kUnbounded;
  int64_t hi = kUnbounded;

  ATTND_MASK_INLINE bool Allows(int64_t row, int64_t key) const {
    return row + lo <= key && key <= row + hi;
  }

  // The keys that one row sees.
  ATTND_MASK_INLINE KeyRange RowKeys(int64_t row, int64_t kv_len) const {
    return KvRange(row, row + 1, kv_len);
  }

  // The smallest range that holds every key seen by a row of the tile [q_begin, q_end), q_begin <
  // q_end.
  ATTND_MASK_INLINE KeyRange KvRange(int64_t q_begin, int64_t q_end, int64_t kv_len) const {
    const int64_t begin = q_begin + lo > 0 ? q_begin + lo : 0;
    const int64_t last = q_end - 1 + hi;
    const int64_t end = last < kv_len - 1 ? last + 1 : kv_len;
    return {begin, end < begin ? begin : end};
  }

  // True if every row of the tile sees every key of [k_begin, k_end): such a tile needs no masking.
  ATTND_MASK_INLINE bool AllVisible(int64_t q_begin, int64_t q_end, int64_t k_begin,
                                    int64_t k_end) const {
    return q_end - 1 + lo <= k_begin && k_end - 1 <= q_begin + hi;
  }

  friend constexpr bool operator==(const Band&, const Band&) = default;
};

ATTND_MASK_INLINE Band Intersect(const Band& a, const Band& b) {
  return {a.lo > b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi};
}

enum class Causal : uint8_t { kNone, kTopLeft, kBottomRight };

// TOP_LEFT: j <= i. BOTTOM_RIGHT: j <= i + kv_len - q_len, so that the last row sees the last key.
struct CausalMask {
  Causal alignment = Causal::kNone;

  ATTND_MASK_INLINE Band Resolve(int64_t q_len, int64_t kv_len) const {
    if (alignment == Causal::kTopLeft) return {-kUnbounded, 0};
    if (alignment == Causal::kBottomRight) return {-kUnbounded, kv_len - q_len};
    return {};
  }
  friend constexpr bool operator==(const CausalMask&, const CausalMask&) = default;
};

// Inclusive at both ends, after bottom-right alignment: keys i - left .. i + right, i counted as i
// + kv_len - q_len. kUnbounded: no bound on that side. Values beyond it are taken as kUnbounded.
struct WindowMask {
  int64_t left = kUnbounded;
  int64_t right = kUnbounded;

  ATTND_MASK_INLINE bool active() const { return left < kUnbounded || right < kUnbounded; }
  ATTND_MASK_INLINE Band Resolve(int64_t q_len, int64_t kv_len) const {
    const int64_t shift = kv_len - q_len;
    return {left < kUnbounded ? shift - left : -kUnbounded,
            right < kUnbounded ? shift + right : kUnbounded};
  }
  friend constexpr bool operator==(const WindowMask&, const WindowMask&) = default;
};

// The masks of one problem. A key is visible if every mask allows it.
struct MaskSpec {
  CausalMask causal;
  WindowMask window;

  ATTND_MASK_INLINE Band Resolve(int64_t q_len, int64_t kv_len) const {
    return Intersect(causal.Resolve(q_len, kv_len), window.Resolve(q_len, kv_len));
  }
  friend constexpr bool operator==(const MaskSpec&, const MaskSpec&) = default;
};

}  // namespace attnd::kernels

#endif  // ATTND_KERNELS_MASK_H_
