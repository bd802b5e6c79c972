// Factors of the vector kernel's products in bf16: pairs of elements, for VDPBF16PS, which adds the
// two products of a lane's pairs to its fp32 sum. The contract stands in factors_f32.h; the dtype
// is bf16.
//
// The instruction rounds to nearest, ties to even, and takes subnormal numbers for 0, as that of
// AMX does. Probabilities below 2^-126 are 0, too.
#ifndef ATTND_KERNELS_CPU_FACTORS_BF16_H_
#define ATTND_KERNELS_CPU_FACTORS_BF16_H_

#include "kernels/cpu/exp_avx512.h"
#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/flash_rows.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu {
namespace {

struct Factors {
  static constexpr int64_t kElems = 2;
  using Vector = U32;  // the first element below, the second above

  ATTND_CPU_INLINE static Vector BroadcastFrom(const float* at) {
    int32_t pair;
    __builtin_memcpy(&pair, at, sizeof pair);
    return BitCast<Vector>(BroadcastInt(pair));
  }

  ATTND_CPU_INLINE static F32 MultiplyAdd(Vector a, Vector b, F32 sum) {
    return _mm512_dpbf16_ps(sum, BitCast<__m512bh>(a), BitCast<__m512bh>(b));
  }

  ATTND_CPU_INLINE static F32 MultiplyAddVisible(Vector a, Vector b, I32 visible, F32 sum) {
    return MultiplyAdd(a, b & BitCast<Vector>(visible), sum);
  }

  ATTND_CPU_INLINE static I32 Mask(const I32* visible) {
    return (visible[0] & 0xffff) | (visible[1] & ~0xffff);
  }

  ATTND_CPU_INLINE static bool InPlace(const FlashTile& /*tile*/) { return false; }

  // Pairs pass through the transposition as if they were floats, of which no bit changes.
  ATTND_CPU_INLINE static void LoadQueries(const FlashTile& tile, int64_t row, float* to,
                                           int64_t to_stride) {
    const unsigned char* from = tile.q + row * tile.q_row_stride_bytes;
    const int64_t rows = tile.rows - row;
    const int64_t pairs = tile.head_dim / 2;
    LoadLanes(Element::kF32, from, tile.q_row_stride_bytes, rows, pairs, to, to_stride);
    if (tile.head_dim % 2 == 0) return;
    Vector last{};
    for (int lane = 0; lane < kLanes && lane < rows; ++lane) {
      uint16_t element;
      __builtin_memcpy(&element, from + lane * tile.q_row_stride_bytes + 4 * pairs, sizeof element);
      last[lane] = element;
    }
    StoreVector(to + pairs * to_stride, last);
  }

  ATTND_CPU_INLINE static void LoadKey(const FlashTile& tile, int64_t key, float* to) {
    const auto* row = static_cast<const unsigned char*>(tile.k.Row(key));
    for (int64_t i = 0; i < tile.head_dim; i += kLanes) {
      StoreVector(to + i / 2, LoadBits<Element::kBF16>(row, i, tile.head_dim));
    }
  }

  ATTND_CPU_INLINE static void LoadValues(const FlashTile& tile, int64_t key, int64_t keys,
                                          float* to) {
    const auto* first = static_cast<const unsigned char*>(tile.v.Row(key));
    const auto* second =
        keys > 1 ? static_cast<const unsigned char*>(tile.v.Row(key + 1)) : nullptr;
    for (int64_t i = 0; i < tile.head_dim; i += kLanes) {
      Vector pairs = Elements(first, i, tile.head_dim);
      if (second != nullptr) pairs |= Elements(second, i, tile.head_dim) << 16;
      StoreVector(to + i, pairs);
    }
  }

  static constexpr float kLeastWeight = -126.0f;
  ATTND_CPU_INLINE static F32 Probability(F32 difference, F32 factor, F32 least) {
    return ExpOf(difference, factor, least);
  }

  // Rounded to nearest, halves away from zero, by integers: the multiplier has enough to do.
  ATTND_CPU_INLINE static Vector Weights(const F32* probabilities) {
    const U32 low = (Bits(probabilities[0]) + 0x8000u) >> 16;
    const U32 high = (Bits(probabilities[1]) + 0x8000u) & 0xffff0000u;
    return low | high;
  }

 private:
  ATTND_CPU_INLINE static U32 Elements(const unsigned char* row, int64_t i, int64_t count) {
    return __builtin_convertvector(LoadBits<Element::kBF16>(row, i, count), U32);
  }
};

}  // namespace
}  // namespace attnd::kernels::cpu
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_FACTORS_BF16_H_
