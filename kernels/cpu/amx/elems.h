// Elements of the caller's tensors as bf16. Any alignment, never a byte outside the row. Included
// by the AMX kernel's unit alone.
//
// fp16 becomes two bf16 that add up to it exactly: 11 bits of mantissa are 8 and 3. Where the first
// is infinite or NaN, the second is 0.
#ifndef ATTND_KERNELS_CPU_AMX_ELEMS_H_
#define ATTND_KERNELS_CPU_AMX_ELEMS_H_

#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

// Of 32 elements the first `count`, none for less than 1.
ATTND_CPU_INLINE __mmask32 FirstElems(int64_t count) {
  return count >= 32 ? ~0u : count > 0 ? (1u << count) - 1 : 0;
}

// Which elements a row has, by steps of 32.
template <int kSteps>
struct Columns {
  __mmask32 there[kSteps] = {};

  Columns() = default;
  explicit Columns(int64_t head_dim) {
    for (int step = 0; step < kSteps; ++step) there[step] = FirstElems(head_dim - step * kDepth);
  }
};

// The parts of 32 elements: bf16 is one, fp16 two.
template <int kParts>
struct Elems {
  __m512i part[kParts];
};

// bf16 numbers that are infinite or NaN.
ATTND_CPU_INLINE __mmask32 NotFinite(__m512i bf16) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  return _mm512_cmpeq_epi16_mask(_mm512_and_si512(bf16, exponent), exponent);
}

ATTND_CPU_INLINE __m512i Join(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Any fp16 numbers, through fp32.
__attribute__((noinline)) Elems<2> SplitAnyF16(__m512i bits) {
  __m256i high[2], low[2];
  for (int i = 0; i < 2; ++i) {
    const __m512 value =
        _mm512_cvtph_ps(i == 0 ? _mm512_castsi512_si256(bits) : _mm512_extracti64x4_epi64(bits, 1));
    high[i] = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value));
    const __m512 rounded =
        _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high[i]), 16));
    const __mmask16 finite =
        _mm512_cmp_ps_mask(_mm512_abs_ps(value), _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ);
    low[i] =
        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_maskz_sub_ps(finite, value, rounded)));
  }
  return {{Join(high[0], high[1]), Join(low[0], low[1])}};
}

// What the last four bits of an fp16 number's mantissa mean for its two parts: the first is rounded
// to nearest, ties to even, in the mantissa's last three; the second is what that leaves, of 2^-10
// of the number's power of 2. Twice, for five bits of index. The exponents' biases are 15 and 127.
struct alignas(64) SplitTable {
  uint16_t high[32];
  uint16_t low[32];
  constexpr SplitTable() : high(), low() {
    for (int i = 0; i < 32; ++i) {
      const int rest = i % 8;
      const bool up = rest > 4 || (rest == 4 && i / 8 % 2 == 1);
      high[i] = static_cast<uint16_t>((127 - 15) * 128 + (up ? 1 : 0));
      const int size = up ? 8 - rest : rest;  // 0 .. 4; 0 is not looked at
      const int log2 = size < 2 ? 0 : size < 4 ? 1 : 2;
      low[i] = static_cast<uint16_t>((up ? 0x8000 : 0) + (127 - 15 - 10 + log2) * 128 +
                                     (size == 3 ? 64 : 0));
    }
  }
};
constexpr SplitTable kSplitTable;

// `not_finite` becomes true if an element is.
ATTND_CPU_INLINE Elems<2> SplitF16(__m512i bits, bool& not_finite) {
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
  const __mmask32 nonzero = _mm512_test_epi16_mask(magnitude, magnitude);
  // Subnormal, infinite and NaN ones lie outside one range; so does 0, which is welcome.
  const __mmask32 odd = _mm512_mask_cmpgt_epu16_mask(
      nonzero, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(0x0400)), _mm512_set1_epi16(0x77ff));
  if (__builtin_expect(odd != 0, 0)) {
    const Elems<2> parts = SplitAnyF16(bits);
    not_finite |= NotFinite(parts.part[0]) != 0;
    return parts;
  }
  const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
  const __mmask32 inexact = _mm512_test_epi16_mask(bits, _mm512_set1_epi16(7));
  const __m512i shifted = _mm512_srli_epi16(magnitude, 3);
  const __m512i high = _mm512_maskz_add_epi16(
      nonzero, shifted, _mm512_permutexvar_epi16(bits, _mm512_load_si512(kSplitTable.high)));
  const __m512i low =
      _mm512_maskz_add_epi16(inexact, _mm512_and_si512(shifted, _mm512_set1_epi16(0x7f80)),
                             _mm512_permutexvar_epi16(bits, _mm512_load_si512(kSplitTable.low)));
  constexpr int kXorOfAnd = 0x78;  // a ^ (b & c)
  return {{_mm512_ternarylogic_epi32(high, bits, sign, kXorOfAnd),
           _mm512_ternarylogic_epi32(low, bits, sign, kXorOfAnd)}};
}

// 32 elements of a row from `from` on. For fp16, `not_finite` becomes true if one is.
template <int kParts>
ATTND_CPU_INLINE Elems<kParts> LoadParts(const unsigned char* from, __mmask32 there,
                                         bool& not_finite) {
  const __m512i bits = _mm512_maskz_loadu_epi16(there, from);
  if constexpr (kParts == 1) {
    return {{bits}};
  } else {
    return SplitF16(bits, not_finite);
  }
}

// One element.
template <int kParts>
ATTND_CPU_INLINE float LoadElement(const void* from) {
  uint16_t bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  const U16 all = BitCast<U16>(_mm256_set1_epi16(static_cast<int16_t>(bits)));
  return kParts == 1 ? FromBF16(all)[0] : FromF16(all)[0];
}

// The dot product of two rows of fp16, in fp32.
ATTND_CPU_INLINE float DotF16(const unsigned char* a, const unsigned char* b, int64_t count) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < count; i += 32) {
    const __mmask32 there = FirstElems(count - i);
    const __m512i x = _mm512_maskz_loadu_epi16(there, a + 2 * i);
    const __m512i y = _mm512_maskz_loadu_epi16(there, b + 2 * i);
    sum = _mm512_fmadd_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(x)),
                          _mm512_cvtph_ps(_mm512_castsi512_si256(y)), sum);
    sum = _mm512_fmadd_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)),
                          _mm512_cvtph_ps(_mm512_extracti64x4_epi64(y, 1)), sum);
  }
  return _mm512_reduce_add_ps(sum);
}

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_ELEMS_H_
