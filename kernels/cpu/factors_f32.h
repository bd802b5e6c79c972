// Factors of the vector kernel's products in fp32: the elements themselves, whatever the dtype. The
// contract of any `Factors`, of which flash_body.h takes one by its unit's flags, stands here.
//
// A lane of a vector, and a number of scratch, is 32 bits that hold kElems elements which are
// adjacent along the sum: columns of head_dim for scores, keys for P.V.
#ifndef ATTND_KERNELS_CPU_FACTORS_F32_H_
#define ATTND_KERNELS_CPU_FACTORS_F32_H_

#include "kernels/cpu/config.h"
#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/flash_rows.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu {
namespace {

struct Factors {
  static constexpr int64_t kElems = 1;
  using Vector = F32;

  // The number at `at`, in every lane.
  ATTND_CPU_INLINE static Vector BroadcastFrom(const float* at) {
    return Broadcast(LoadVector<float>(at));
  }

  // sum + a * b, of all elements of a lane.
  ATTND_CPU_INLINE static F32 MultiplyAdd(Vector a, Vector b, F32 sum) { return Fma(a, b, sum); }

  // The same where b's bits count only as far as they are in `visible`. a is 0 where none of a
  // lane's are.
  ATTND_CPU_INLINE static F32 MultiplyAddVisible(Vector a, Vector b, I32 visible, F32 sum) {
#if defined(__AVX512F__)
    return _mm512_mask3_fmadd_ps(a, b, sum, _mm512_movepi32_mask(BitCast<__m512i>(visible)));
#else
    return Fma(a, BitCast<Vector>(BitCast<I32>(b) & visible), sum);
#endif
  }

  // The lanes' bits that belong to visible elements; visible[i] is -1 or 0, for element i.
  ATTND_CPU_INLINE static I32 Mask(const I32* visible) { return visible[0]; }

  // Whether rows of K and V are numbers as they lie, and near enough to each other.
  ATTND_CPU_INLINE static bool InPlace(const FlashTile& tile) {
    return tile.element == Element::kF32 && InPlaceStride(tile.k.row_stride_bytes) &&
           InPlaceStride(tile.v.row_stride_bytes);
  }

  // Up to kLanes query rows, a lane each: number i of them is to[i * to_stride] and following.
  // Lanes without a row are zeros, as are elements past head_dim, up to a whole number.
  ATTND_CPU_INLINE static void LoadQueries(const FlashTile& tile, int64_t row, float* to,
                                           int64_t to_stride) {
    LoadLanes(tile.element, tile.q + row * tile.q_row_stride_bytes, tile.q_row_stride_bytes,
              tile.rows - row, tile.head_dim, to, to_stride);
  }

  // One row of K. Elements past head_dim are zeros, up to a whole number.
  ATTND_CPU_INLINE static void LoadKey(const FlashTile& tile, int64_t key, float* to) {
    LoadRow(tile.element, tile.k.Row(key), tile.head_dim, to);
  }

  // The rows [key, key + min(keys, kElems)) of V: one number a column, then zeros up to a whole
  // vector. The elements of missing rows are zeros.
  ATTND_CPU_INLINE static void LoadValues(const FlashTile& tile, int64_t key, int64_t /*keys*/,
                                          float* to) {
    LoadRow(tile.element, tile.v.Row(key), tile.head_dim, to);
  }

  // 2^(difference * factor), difference <= 0, as precise as weights are: 0 for -inf, NaN for NaN.
  // `least` is kLeastWeight / factor.
  static constexpr float kLeastWeight = kLeastExponent;
  ATTND_CPU_INLINE static F32 Probability(F32 difference, F32 factor, F32 least) {
    return Exp2(difference, factor, least);
  }

  // The probabilities of kElems keys.
  ATTND_CPU_INLINE static Vector Weights(const F32* probabilities) { return probabilities[0]; }

 private:
  ATTND_CPU_INLINE static bool InPlaceStride(int64_t stride_bytes) {
    return stride_bytes % kNumberBytes == 0 && stride_bytes <= kMaxInPlaceStrideBytes;
  }
};

}  // namespace
}  // namespace attnd::kernels::cpu
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_FACTORS_F32_H_
