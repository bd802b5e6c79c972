// Rows of Q, K and V on their way from the caller's tensors into tiles of bf16. Included by the AMX
// kernel's unit alone.
#ifndef ATTND_KERNELS_CPU_AMX_PACK_H_
#define ATTND_KERNELS_CPU_AMX_PACK_H_

#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/amx/elems.h"
#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

// One row of a block of queries, zeros without a row: [step of 32 columns][part][row
// half][row][32]. For fp16, true if an element is infinite or NaN.
template <int kSteps, int kParts>
ATTND_CPU_INLINE bool PackQuery(const unsigned char* row, const Columns<kSteps>& columns,
                                int64_t row_in_block, uint16_t* block) {
  uint16_t* at = block + row_in_block * kDepth;  // halves follow each other
  bool not_finite = false;
#pragma GCC unroll 8
  for (int step = 0; step < kSteps; ++step) {
    const Elems<kParts> elems =
        row != nullptr ? LoadParts<kParts>(row + step * kDepth * 2, columns.there[step], not_finite)
                       : Elems<kParts>{};
    for (int part = 0; part < kParts; ++part) {
      _mm512_store_si512(at + (step * kParts + part) * 2 * kTileElems, elems.part[part]);
    }
  }
  return not_finite;
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
uint32_t PackKeys(KvView k, int64_t key, int64_t end, Columns<kSteps> columns, uint16_t* to) {
  uint32_t not_finite = 0;
  const bool whole = key + 16 <= end;
  for (int step = 0; step < kSteps; ++step, to += kParts * kTileElems) {
    const auto* from = static_cast<const unsigned char*>(k.Row(key)) + step * kDepth * 2;
    __m512i rows[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i, from += k.row_stride_bytes) {
      bool bad = false;
      const __mmask32 there = whole || key + i < end ? columns.there[step] : 0;
      const Elems<kParts> elems = LoadParts<kParts>(from, there, bad);
      rows[i] = elems.part[0];
      if constexpr (kParts == 2) {
        not_finite |= uint32_t{bad} << i;
        _mm512_store_si512(to + kTileElems + i * kDepth, elems.part[1]);
      }
    }
    for (int part = 0; part < kParts; ++part) {
      uint16_t* tile = to + part * kTileElems;
      if (part == 1) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) rows[i] = _mm512_load_si512(tile + i * kDepth);
      }
      Transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + i * kDepth, rows[i]);
    }
  }
  return not_finite;
}

// Infinite and NaN elements of packed values become 0. The second part of such a one is 0 already.
template <int kSteps, int kParts>
__attribute__((noinline)) void ZeroNotFinite(int64_t stride, uint16_t* to) {
  for (int column = 0; column < 2 * kSteps; ++column, to += stride) {
    for (int pair = 0; pair < 16; ++pair) {
      const __m512i elems = _mm512_load_si512(to + pair * kDepth);
      _mm512_store_si512(to + pair * kDepth, _mm512_maskz_mov_epi16(~NotFinite(elems), elems));
    }
  }
}

// The largest of some values.
enum class Values : uint8_t { kSmall, kLarge, kNotFinite };  // kLarge: 2^48 and more

// 32 keys from `key` on, zeros from `end` on, as the right operand of P.V: tiles
// [part][pair of keys that are 16 apart][column][2] for each group of 16 columns, `stride` elements
// apart; two groups together hold 32 columns in the order of ColumnPlace. Infinite and NaN elements
// become 0.
template <int kSteps, int kParts>
Values PackValues(KvView v, int64_t key, int64_t end, Columns<kSteps> columns, int64_t stride,
                  uint16_t* to) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __m512i largest = _mm512_setzero_si512();  // exponent
  bool not_finite = false;
  for (int pair = 0; pair < 16; ++pair) {
    const auto* from = static_cast<const unsigned char*>(v.Row(key + pair));
    const __mmask32 row[2] = {key + pair < end ? ~0u : 0, key + pair + 16 < end ? ~0u : 0};
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; ++step) {
      Elems<kParts> elems[2];
      for (int i = 0; i < 2; ++i) {
        elems[i] = LoadParts<kParts>(from + i * 16 * v.row_stride_bytes + step * kDepth * 2,
                                     columns.there[step] & row[i], not_finite);
        if constexpr (kParts == 1) {
          largest = _mm512_max_epu16(largest, _mm512_and_si512(elems[i].part[0], exponent));
        }
      }
      for (int part = 0; part < kParts; ++part) {
        uint16_t* tile = to + 2 * step * stride + part * kTileElems + pair * kDepth;
        const __m512i first = elems[0].part[part], second = elems[1].part[part];
        _mm512_store_si512(tile, _mm512_unpacklo_epi16(first, second));
        _mm512_store_si512(tile + stride, _mm512_unpackhi_epi16(first, second));
      }
    }
  }
  if constexpr (kParts == 1) not_finite = NotFinite(largest) != 0;
  if (__builtin_expect(not_finite, 0)) {
    ZeroNotFinite<kSteps, kParts>(stride, to);
    return Values::kNotFinite;
  }
  const __m512i large = _mm512_set1_epi16((127 + 48) << 7);
  return _mm512_cmpge_epu16_mask(largest, large) != 0 ? Values::kLarge : Values::kSmall;
}

// Where column `column` of V stands among O's: unpacking works within 128 bits, so that each group
// of 32 begins with the first halves of every 8 columns.
ATTND_CPU_INLINE constexpr int64_t ColumnPlace(int64_t column) {
  const int64_t in_group = column % 32;
  const int64_t half = in_group % 8 / 4;
  return column - in_group + half * 16 + in_group / 8 * 4 + in_group % 4;
}

// Whether a row of V has a finite element of Values::kLarge.
template <int kParts>
bool HasLarge(const void* row, int64_t head_dim) {
  for (int64_t column = 0; column < head_dim; ++column) {
    const float size =
        __builtin_fabsf(LoadElement<kParts>(static_cast<const uint16_t*>(row) + column));
    if (size >= 0x1p48f && __builtin_isfinite(size)) return true;
  }
  return false;
}

// The infinite and NaN elements of a row of V, at their places in `v`, and where they are as bits;
// false if there are none.
template <int kSteps, int kParts>
bool NotFiniteOf(const void* row, int64_t head_dim, float* v, __mmask16* masks) {
  for (int64_t i = 0; i < 2 * kSteps; ++i) masks[i] = 0;
  bool any = false;
  for (int64_t column = 0; column < head_dim; ++column) {
    const float value = LoadElement<kParts>(static_cast<const uint16_t*>(row) + column);
    if (__builtin_isfinite(value)) continue;
    const int64_t place = ColumnPlace(column);
    v[place] = value;
    masks[place / 16] |= static_cast<__mmask16>(1u << place % 16);
    any = true;
  }
  return any;
}

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_PACK_H_
