// Rows of Q, K and V on their way from the caller's tensors into tiles of bf16. Any alignment,
// never a byte outside the row. Included by the AMX kernel's unit alone.
//
// fp16 becomes two bf16 that add up to it exactly: 11 bits of mantissa are 8 and 3. Where the first
// is infinite or NaN, the second is 0.
#ifndef ATTND_KERNELS_CPU_AMX_PACK_H_
#define ATTND_KERNELS_CPU_AMX_PACK_H_

#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

// Parts of an element: bf16 is one, fp16 two.
constexpr int kMaxParts = 2;

// Elements [column, column + 32) of a row, zeros beyond its end.
ATTND_CPU_INLINE __m512i LoadElems(const unsigned char* row, int64_t column, int64_t head_dim) {
  const int64_t left = head_dim - column;
  const __mmask32 there = left >= 32 ? ~0u : left > 0 ? (1u << left) - 1 : 0;
  return _mm512_maskz_loadu_epi16(there, row + column * 2);
}

ATTND_CPU_INLINE __m256i Upper(__m512 value) {
  return _mm256_castps_si256(_mm512_extractf32x8_ps(value, 1));
}

// To nearest, ties to even; NaN stays NaN. Through AVX512-BF16, which every AMX processor has.
ATTND_CPU_INLINE __m256i RoundToBF16(__m512 value) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value));
}
ATTND_CPU_INLINE __m512 WidenBF16(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

struct Split {
  __m256i high;
  __m256i low;
};

ATTND_CPU_INLINE Split SplitF16(__m256i bits) {
  const __m512 value = _mm512_cvtph_ps(bits);
  const __m256i high = RoundToBF16(value);
  const __mmask16 finite =
      _mm512_cmp_ps_mask(_mm512_abs_ps(value), _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ);
  return {high, RoundToBF16(_mm512_maskz_sub_ps(finite, value, WidenBF16(high)))};
}

// The parts of 32 elements.
template <int kParts>
struct Elems {
  __m512i part[kParts];
};

template <int kParts>
ATTND_CPU_INLINE Elems<kParts> LoadParts(const unsigned char* row, int64_t column,
                                         int64_t head_dim) {
  const __m512i bits = LoadElems(row, column, head_dim);
  if constexpr (kParts == 1) {
    return {{bits}};
  } else {
    const Split first = SplitF16(_mm512_castsi512_si256(bits));
    const Split second = SplitF16(_mm512_extracti64x4_epi64(bits, 1));
    return {{_mm512_inserti64x4(_mm512_castsi256_si512(first.high), second.high, 1),
             _mm512_inserti64x4(_mm512_castsi256_si512(first.low), second.low, 1)}};
  }
}

// bf16 numbers that are infinite or NaN.
ATTND_CPU_INLINE __mmask32 NotFinite(__m512i bf16) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  return _mm512_cmpeq_epi16_mask(_mm512_and_si512(bf16, exponent), exponent);
}

// One element.
template <int kParts>
ATTND_CPU_INLINE float LoadElement(const void* from) {
  uint16_t bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  const U16 all = BitCast<U16>(_mm256_set1_epi16(static_cast<int16_t>(bits)));
  return kParts == 1 ? FromBF16(all)[0] : FromF16(all)[0];
}

// A row of O: rounded to nearest, subnormal numbers kept.
template <int kParts>
ATTND_CPU_INLINE void StoreRow(const float* from, int64_t count, unsigned char* to) {
  for (int64_t i = 0; i < count; i += 16) {
    const F32 values = LoadVector<F32>(from + i);
    const U16 bits = kParts == 1 ? ToBF16(values) : ToF16(values);
    const __mmask16 there = count - i >= 16 ? 0xffff : (1u << (count - i)) - 1;
    _mm256_mask_storeu_epi16(to + i * 2, there, BitCast<__m256i>(bits));
  }
}

// The dot product of two rows of fp16, in fp32.
ATTND_CPU_INLINE float DotF16(const unsigned char* a, const unsigned char* b, int64_t count) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < count; i += 32) {
    const __m512i x = LoadElems(a, i, count), y = LoadElems(b, i, count);
    sum = _mm512_fmadd_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(x)),
                          _mm512_cvtph_ps(_mm512_castsi512_si256(y)), sum);
    sum = _mm512_fmadd_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)),
                          _mm512_cvtph_ps(_mm512_extracti64x4_epi64(y, 1)), sum);
  }
  return _mm512_reduce_add_ps(sum);
}

// One row of a block of queries: [step of 32 columns][part][row half][row][32]. True if an element
// is infinite or NaN.
template <int kSteps, int kParts>
bool PackQuery(const unsigned char* row, int64_t head_dim, int64_t row_in_block, uint16_t* block) {
  uint16_t* at = block + row_in_block * kDepth;  // halves follow each other
  __mmask32 not_finite = 0;
  for (int step = 0; step < kSteps; ++step) {
    const Elems<kParts> elems =
        row != nullptr ? LoadParts<kParts>(row, step * kDepth, head_dim) : Elems<kParts>{};
    for (int part = 0; part < kParts; ++part) {
      _mm512_store_si512(at + (step * kParts + part) * 2 * kTileElems, elems.part[part]);
    }
    not_finite |= NotFinite(elems.part[0]);
  }
  return not_finite != 0;
}

// Turns rows[i] = (i, 0..15) into rows[j] = (0..15, j), elements of 32 bits.
ATTND_CPU_INLINE void Transpose(__m512i rows[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  // Of rows 4i .. 4i + 3: column 4 lane + c of each in lane `lane` of rows[4i + c].
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm512_shuffle_i32x4(rows[c], rows[c + 4], 0x88);      // lanes 0, 2
    t[c + 4] = _mm512_shuffle_i32x4(rows[c], rows[c + 4], 0xdd);  // lanes 1, 3
    t[c + 8] = _mm512_shuffle_i32x4(rows[c + 8], rows[c + 12], 0x88);
    t[c + 12] = _mm512_shuffle_i32x4(rows[c + 8], rows[c + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    rows[c] = _mm512_shuffle_i32x4(t[c], t[c + 8], 0x88);
    rows[c + 8] = _mm512_shuffle_i32x4(t[c], t[c + 8], 0xdd);
    rows[c + 4] = _mm512_shuffle_i32x4(t[c + 4], t[c + 12], 0x88);
    rows[c + 12] = _mm512_shuffle_i32x4(t[c + 4], t[c + 12], 0xdd);
  }
}

// 16 keys from `key` on, zeros from `end` on, as the right operand of Q.K^T:
// [step][part][pair of columns][key][2]. For fp16, bit i of the result: key i has an element that
// is infinite or NaN.
template <int kSteps, int kParts>
uint32_t PackKeys(const KvView& k, int64_t key, int64_t end, int64_t head_dim, uint16_t* to) {
  uint32_t not_finite = 0;
  for (int step = 0; step < kSteps; ++step) {
    __m512i rows[kParts][16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const auto* row = static_cast<const unsigned char*>(k.Row(key + i));
      const Elems<kParts> elems =
          key + i < end ? LoadParts<kParts>(row, step * kDepth, head_dim) : Elems<kParts>{};
      for (int part = 0; part < kParts; ++part) rows[part][i] = elems.part[part];
      if (kParts == 2 && NotFinite(elems.part[0]) != 0) not_finite |= 1u << i;
    }
    for (int part = 0; part < kParts; ++part) {
      Transpose(rows[part]);
      uint16_t* tile = to + (step * kParts + part) * kTileElems;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + i * kDepth, rows[part][i]);
    }
  }
  return not_finite;
}

// 32 keys from `key` on, zeros from `end` on, as the right operand of P.V: tiles
// [part][pair of keys that are 16 apart][column][2] for each group of 16 columns, `stride` elements
// apart; two groups together hold 32 columns in the order of ColumnPlace. Infinite and NaN elements
// become 0; true if there were any.
template <int kSteps, int kParts>
bool PackValues(const KvView& v, int64_t key, int64_t end, int64_t head_dim, int64_t stride,
                uint16_t* to) {
  __mmask32 not_finite = 0;
  for (int pair = 0; pair < 16; ++pair) {
    for (int step = 0; step < kSteps; ++step) {
      Elems<kParts> elems[2];
      for (int i = 0; i < 2; ++i) {
        const int64_t row = key + pair + 16 * i;
        elems[i] = row < end ? LoadParts<kParts>(static_cast<const unsigned char*>(v.Row(row)),
                                                 step * kDepth, head_dim)
                             : Elems<kParts>{};
        const __mmask32 bad = NotFinite(elems[i].part[0]);
        elems[i].part[0] = _mm512_maskz_mov_epi16(~bad, elems[i].part[0]);
        not_finite |= bad;
      }
      for (int part = 0; part < kParts; ++part) {
        uint16_t* tile = to + 2 * step * stride + part * kTileElems + pair * kDepth;
        const __m512i first = elems[0].part[part], second = elems[1].part[part];
        _mm512_store_si512(tile, _mm512_unpacklo_epi16(first, second));
        _mm512_store_si512(tile + stride, _mm512_unpackhi_epi16(first, second));
      }
    }
  }
  return not_finite != 0;
}

// Where column `column` of V stands among O's: unpacking works within 128 bits, so that each group
// of 32 begins with the first halves of every 8 columns.
ATTND_CPU_INLINE int64_t ColumnPlace(int64_t column) {
  const int64_t in_group = column % 32;
  const int64_t half = in_group % 8 / 4;
  return column - in_group + half * 16 + in_group / 8 * 4 + in_group % 4;
}

// Two groups of 16 columns of O as 32 in their own order again.
ATTND_CPU_INLINE void RestoreColumns(__m512 first, __m512 second, float* to) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(first, low, second));
  _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(first, high, second));
}

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_PACK_H_
