// The exponential of weights that become bf16, in AVX-512: 8 operations of the multiplier, as many
// others. Included by those kernels' units alone.
#ifndef ATTND_KERNELS_CPU_EXP_AVX512_H_
#define ATTND_KERNELS_CPU_EXP_AVX512_H_

#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu {
namespace {

// 2^(difference * factor) for differences <= 0, within 3e-6 of the value: exactly 1 for 0, NaN for
// NaN, and 0 where it would be below 2^-126, -inf included. The difference is scaled within the
// multiply-adds, so that scores of any size cancel exactly.
ATTND_CPU_INLINE __m512 ExpOf(__m512 difference, __m512 factor, __m512 least) {
  const __mmask16 normal = _mm512_cmp_ps_mask(difference, least, _CMP_NLT_UQ);
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
  const __m512 magic = _mm512_set1_ps(0x1.8p23f);
  const __m512 shifted = _mm512_fmadd_ps(difference, factor, magic);
  const __m512 n = _mm512_sub_ps(shifted, magic);
  const __m512 r = _mm512_fmsub_ps(difference, factor, n);
  // 2^r = 1 + r g(r) on |r| <= 1/2; g by minimax fit, error 2.8e-6.
  __m512 g = _mm512_set1_ps(0x1.3a02ccp-7f);
  g = _mm512_fmadd_ps(g, r, _mm512_set1_ps(0x1.c9fc46p-5f));
  g = _mm512_fmadd_ps(g, r, _mm512_set1_ps(0x1.ec0378p-3f));
  g = _mm512_fmadd_ps(g, r, _mm512_set1_ps(0x1.62e12cp-1f));
  g = _mm512_fmadd_ps(g, r, _mm512_set1_ps(1.0f));
  const auto power = BitCast<__m512i>(Bits(shifted) << 23);
  return _mm512_castsi512_ps(_mm512_maskz_add_epi32(normal, _mm512_castps_si512(g), power));
}

}  // namespace
}  // namespace attnd::kernels::cpu
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_EXP_AVX512_H_
