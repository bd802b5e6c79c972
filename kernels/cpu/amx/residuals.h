// What rounding to bf16 took from the largest weights of a row, or gave them. Included by the AMX
// kernel's unit alone.
//
// A row's largest weight is exactly 1, and needs no rounding, only if it gave the row's reference.
// References rise seldom, so a weight that is two fifths larger than the one noted before is noted,
// and what its rounding changed is added to O and to the sum afterwards. A few weights are most of
// a row's answer.
#ifndef ATTND_KERNELS_CPU_AMX_RESIDUALS_H_
#define ATTND_KERNELS_CPU_AMX_RESIDUALS_H_

#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/amx/softmax.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

// Of 16 rows, whose O is `o`, [16 columns][row][16] with the sums as last ones, and whose notes are
// of the chunk that is packed at `v`, as PackValues leaves it, columns `v_elems` apart. The notes
// are used up.
template <int kSteps>
__attribute__((noinline)) void AddResiduals(const Tops& tops, const uint16_t* v, int64_t v_elems,
                                            float* o) {
  for (int note = 0; note < 2; ++note) {
    const __m512i none = _mm512_set1_epi32(-1);
    const __m512i places = _mm512_load_si512(tops.place[note]);
    uint32_t rows = _mm512_cmpneq_epi32_mask(places, none);
    if (rows == 0) continue;
    const __m512 x = _mm512_load_ps(tops.exponent[note]);
    const __m512i rounded = _mm512_slli_epi32(RoundedExp2::Of(x), 16);
    const __m512 residual = _mm512_sub_ps(ExactExp2(x), _mm512_castsi512_ps(rounded));
    alignas(64) float residuals[16];
    _mm512_store_ps(residuals, residual);
    // It is at most 2^-8 of a power of 2. The smallest quarter of them has a 64th of the squares.
    const __m512 quarter = _mm512_scalef_ps(_mm512_set1_ps(0x1p-10f), x);
    rows &= _mm512_cmp_ps_mask(_mm512_abs_ps(residual), quarter, _CMP_GE_OQ);
    for (; rows != 0; rows &= rows - 1) {
      const int row = __builtin_ctz(rows);
      const int32_t place = tops.place[note][row];
      const uint16_t* values = v + place / 32 * kTileElems + place % 16 * kDepth;
      const __m512 factor = _mm512_set1_ps(residuals[row]);
      const auto add = [&](int column, __m512 value) __attribute__((always_inline)) {
        float* to = o + column * 256 + row * 16;
        _mm512_store_ps(to, _mm512_fmadd_ps(factor, value, _mm512_load_ps(to)));
      };
      // Keys that are 16 apart lie in the lower and the upper halves.
      const __m128i shift = _mm_cvtsi32_si128(place % 32 < 16 ? 16 : 0);
      for (int column = 0; column < 2 * kSteps; ++column) {
        const __m512i pairs = _mm512_load_si512(values + column * v_elems);
        add(column, Upper(_mm512_castsi512_ps(_mm512_sll_epi32(pairs, shift))));
      }
      add(2 * kSteps, _mm512_set1_ps(1.0f));
    }
    _mm512_store_si512(tops.place[note], none);
  }
}

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_RESIDUALS_H_
