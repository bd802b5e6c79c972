// Sums of rows become answers in the caller's tensors. Included by the AMX kernel's unit alone.
#ifndef ATTND_KERNELS_CPU_AMX_ANSWERS_H_
#define ATTND_KERNELS_CPU_AMX_ANSWERS_H_

#include "kernels/cpu/amx/elems.h"
#include "kernels/cpu/amx/pack.h"
#include "kernels/cpu/amx/rows.h"
#include "kernels/cpu/amx/softmax.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

// What 16 rows come to.
struct Totals {
  alignas(64) float sum[16];
  alignas(64) float factor[16];  // for O
  uint32_t none;                 // bit i: nothing was left for row i, whose answer is 0
};

// Of [row][16] lanes, what each row's add up to.
ATTND_CPU_INLINE __m512 AddLanes(const float* lanes) {
  __m512 v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = _mm512_load_ps(lanes + i * 16);
  return ReduceEach(
      v, [](__m512 a, __m512 b) __attribute__((always_inline)) { return _mm512_add_ps(a, b); });
}

// Of [row][16] lanes, each row's first; 0 without them.
ATTND_CPU_INLINE __m512 FirstLanes(const float* lanes) {
  if (lanes == nullptr) return _mm512_setzero_ps();
  const __m512i rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_i32gather_ps(_mm512_slli_epi32(rows, 4), lanes, sizeof(float));
}

// Of the first 16 rows.
ATTND_CPU_INLINE Totals TotalsOf(const RowState& rows, __m512 sum) {
  const __mmask16 number = _mm512_cmp_ps_mask(sum, sum, _CMP_ORD_Q);
  Totals totals;
  _mm512_store_ps(totals.sum, sum);
  _mm512_store_ps(totals.factor, _mm512_div_ps(_mm512_set1_ps(1.0f), sum));
  totals.none = _mm512_mask_cmp_ps_mask(number, _mm512_load_ps(rows.reference),
                                        _mm512_set1_ps(-kInfinity), _CMP_EQ_OQ);
  return totals;
}

// Element i is number ColumnPlace(i) of two groups of 16 columns.
struct alignas(64) ColumnOrder {
  uint16_t place[32];
  constexpr ColumnOrder() : place() {
    for (int i = 0; i < 32; ++i) place[i] = static_cast<uint16_t>(ColumnPlace(i));
  }
};
constexpr ColumnOrder kColumnOrder;

// Rounded to nearest, subnormal numbers kept: AVX512-BF16's instruction takes them for 0.
template <int kParts>
ATTND_CPU_INLINE __m512i Narrow(__m512 first, __m512 second) {
  constexpr int kSubnormal = 0x20;
  if constexpr (kParts == 1) {
    const __mmask16 subnormal =
        _mm512_fpclass_ps_mask(first, kSubnormal) | _mm512_fpclass_ps_mask(second, kSubnormal);
    if (__builtin_expect(subnormal == 0, 1)) {
      return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    }
  }
  const U16 low = kParts == 1 ? ToBF16(first) : ToF16(first);
  const U16 high = kParts == 1 ? ToBF16(second) : ToF16(second);
  return Join(BitCast<__m256i>(low), BitCast<__m256i>(high));
}

// 32 columns of a row, as far as they are there, from two groups of 16 as PackValues leaves them.
template <int kParts>
ATTND_CPU_INLINE void StoreColumns(__m512 first, __m512 second, __mmask32 there,
                                   unsigned char* to) {
  const __m512i order = _mm512_load_si512(kColumnOrder.place);
  const __m512i elems = _mm512_permutexvar_epi16(order, Narrow<kParts>(first, second));
  _mm512_mask_storeu_epi16(to, there, elems);
}

// Stores O times its factor, of up to 16 rows: `o` is [16 columns][row][16], and `walk` stands at
// the first one; it stands after the last one then.
template <int kSteps, int kParts>
void StoreAnswers(const Totals& totals, int64_t rows, const float* o, Columns<kSteps> columns,
                  RowWalk<unsigned char*>& walk) {
  RowWalk local = walk;
  for (int64_t i = 0; i < rows; ++i, o += 16) {
    unsigned char* to = local.Next();
    const __m512 factor = _mm512_set1_ps(totals.factor[i]);
    const __mmask16 some = (totals.none >> i & 1) != 0 ? 0 : 0xffff;
#pragma GCC unroll 8
    for (int64_t step = 0; step < kSteps; ++step) {
      StoreColumns<kParts>(_mm512_maskz_mul_ps(some, _mm512_load_ps(o + step * 512), factor),
                           _mm512_maskz_mul_ps(some, _mm512_load_ps(o + step * 512 + 256), factor),
                           columns.there[step], to + step * kDepth * 2);
    }
  }
  walk = local;
}

// reference * unit + ln(sum) of rows [first, first + rows) of the tile; -inf where nothing was
// left. A near reference was rounded, in units of 2's exponent.
void StoreLse(const GroupTile& tile, const Totals& totals, const RowState& of,
              const Exponent& exponent, double unit, int64_t first, int64_t rows) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = tile.row_begin + first + i;
    const double reference = of.reference[i];
    const double rounded =
        of.offset[i] == 0 ? 0 : -of.offset[i] - reference * static_cast<double>(exponent.factor);
    const double lse = reference * unit + rounded * kLn2 + __builtin_log(totals.sum[i]);
    tile.lse[row % tile.group * tile.lse_head_stride + row / tile.group] =
        (totals.none >> i & 1) != 0 ? -kInfinity : static_cast<float>(lse);
  }
}

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_ANSWERS_H_
