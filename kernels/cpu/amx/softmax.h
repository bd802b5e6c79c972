// The softmax of one step of the AMX kernel: 32 rows and 128 keys, a vector 16 keys of a row.
// Included by the AMX kernel's unit alone.
//
// While tiles are at work, the multiplier of port 5 is closed to vectors (measured: 96
// multiplications among tile loads take 93 cycles, 46 without; additions, integers and comparisons
// keep both ports). So what counts is the multiplier's operations: 8 for 16 scores, and as many
// others.
#ifndef ATTND_KERNELS_CPU_AMX_SOFTMAX_H_
#define ATTND_KERNELS_CPU_AMX_SOFTMAX_H_

#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/exp_avx512.h"
#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

// Vectors of scores of a row: all of a step, or the first half of them.
constexpr int kKeyVectors = kStepKeys / 16;
static_assert(kKeyVectors == 8);
constexpr float kInfinity = __builtin_inff();

// Scores in the caller's unit, times `factor`, are exponents of 2.
struct Exponent {
  float factor;
  float least;  // of differences of scores: exp is 2^-126 there, the least normal number

  static ATTND_CPU_INLINE Exponent Of(float factor) {
    const float least = -126.0f / factor;  // -inf for a subnormal factor
    return {factor, least < -__FLT_MAX__ ? -__FLT_MAX__ : least};
  }
};

// Rounded to bf16, halves away from zero: lane i holds even[i], then odd[i]. Without AVX512-BF16's
// instruction, which takes the multiplier twice.
ATTND_CPU_INLINE __m512i PackBF16(__m512 even, __m512 odd) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i low = _mm512_add_epi32(_mm512_castps_si512(even), half);
  const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
  return _mm512_mask_mov_epi16(_mm512_srli_epi32(low, 16), 0xaaaaaaaa, high);
}

// Lane i: the lanes of v[i], combined in the order of _mm512_reduce_add_ps.
template <typename Combine>
ATTND_CPU_INLINE __m512 ReduceEach(__m512 v[16], Combine combine) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    v[i] = combine(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44),
                   _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = combine(_mm512_shuffle_f32x4(v[i], v[i + 4], 0x88),
                   _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    v[i] =
        combine(_mm512_shuffle_ps(v[i], v[i + 2], 0x44), _mm512_shuffle_ps(v[i], v[i + 2], 0xee));
  }
  const __m512 mixed =
      combine(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xdd));
  // Now by 128 bits: rows 0, 8, 4, 12; within: 0, 2, 1, 3 more.
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return _mm512_permutexvar_ps(order, mixed);
}

// What the softmax knows of a block of rows; arrays of kBlockRows, of a task's rows together.
struct RowState {
  float* max;  // running maximum of the scores
  float* sum;  // [row][16] lanes that add up to the running sum of exp(score - max)
};

// Of the step under way.
struct StepState {
  alignas(64) float shift[kBlockRows];   // the new maximum; 0 where that is -inf
  alignas(64) float factor[kBlockRows];  // for what was summed before
  uint32_t grown;                        // bit i: row i's factor is not 1, and something was summed
};

// The scores of a step lie as tiles: [row half][16 keys][row][16].
constexpr int64_t kHalfScores = 16 * kStepKeys;
ATTND_CPU_INLINE float* ScoresOf(float* scores, int64_t row, int64_t vector) {
  return scores + row / 16 * kHalfScores + vector * 256 + row % 16 * 16;
}

// Where a step's rows stand, for masks and ALiBi.
struct Place {
  const GroupTile* tile;
  int64_t row;  // of the task's rows, the block's first
  int64_t key;  // the step's first
};

// The keys of the step that row `row` of the task sees, as bits, 16 a vector.
struct VisibleKeys {
  int64_t begin;
  int64_t end;

  ATTND_CPU_INLINE VisibleKeys(const GroupTile& tile, int64_t row, int64_t key) {
    const KeyRange range = tile.band.RowKeys((tile.row_begin + row) / tile.group, tile.kv_len);
    begin = range.begin - key;
    end = range.end - key;
  }
  ATTND_CPU_INLINE __mmask16 Of(int vector) const {
    return static_cast<__mmask16>(Below(end - 16 * vector) & ~Below(begin - 16 * vector));
  }
  static ATTND_CPU_INLINE uint32_t Below(int64_t lane) {
    return lane >= 16 ? 0xffff : lane > 0 ? (1u << lane) - 1 : 0;
  }
};

// softcap and ALiBi: dot products of one row become scores.
template <int kVectors>
ATTND_CPU_INLINE void Transform(const Place& at, int64_t row, __m512 x[kVectors]) {
  const GroupTile& tile = *at.tile;
  const int64_t task_row = tile.row_begin + at.row + row;
  const float slope =
      tile.alibi_slopes != nullptr ? tile.alibi_slopes[task_row % tile.group] : 0.0f;
  const auto position =
      static_cast<float>(task_row / tile.group + tile.kv_len - tile.q_len - at.key);
  for (int i = 0; i < kVectors; ++i) {
    F32 score = static_cast<F32>(x[i]) * tile.scale;
    if (tile.softcap > 0) score = Tanh(score / tile.softcap) * tile.softcap;
    if (slope != 0) {
      F32 keys;
      for (int lane = 0; lane < kLanes; ++lane) keys[lane] = static_cast<float>(16 * i + lane);
      score = Fma(Abs(position - keys), Broadcast(-slope), score);
    }
    x[i] = score;
  }
}

// New maxima of 16 rows from `first` on, and what follows from them, the sums' rescaling included.
// With kGeneral, softcap and ALiBi are applied; with kEdge, hidden keys become -inf; both are
// stored. Not inlined: its instances serve every head_dim.
template <int kVectors, bool kEdge, bool kGeneral>
__attribute__((noinline)) void NewMaxima(const Place& at, const Exponent& exponent,
                                         const RowState& rows, int64_t first, float* scores,
                                         StepState& step) {
  __m512 v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    __m512 x[kVectors];
    for (int j = 0; j < kVectors; ++j) x[j] = _mm512_load_ps(ScoresOf(scores, first + i, j));
    if constexpr (kGeneral) Transform<kVectors>(at, first + i, x);
    if constexpr (kEdge) {
      const VisibleKeys visible(*at.tile, at.row + first + i, at.key);
      for (int j = 0; j < kVectors; ++j) {
        x[j] = _mm512_mask_mov_ps(_mm512_set1_ps(-kInfinity), visible.Of(j), x[j]);
      }
    }
    if constexpr (kEdge || kGeneral) {
      for (int j = 0; j < kVectors; ++j) {
        _mm512_store_ps(ScoresOf(scores, first + i, j), x[j]);
      }
    }
    for (int j = 1; j < kVectors; ++j) x[0] = _mm512_max_ps(x[j], x[0]);
    v[i] = x[0];
  }
  float* max = rows.max + at.row + first;
  const __m512 old_max = _mm512_load_ps(max);
  const __m512 new_max = _mm512_max_ps(
      ReduceEach(
          v, [](__m512 a, __m512 b) __attribute__((always_inline)) { return _mm512_max_ps(a, b); }),
      old_max);
  const __m512 none = _mm512_set1_ps(-kInfinity);
  const __m512 shift = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(new_max, none, _CMP_NEQ_UQ), new_max);
  _mm512_store_ps(max, new_max);
  _mm512_store_ps(step.shift + first, shift);
  _mm512_store_ps(step.factor + first,
                  ExpOf(_mm512_sub_ps(old_max, shift), _mm512_set1_ps(exponent.factor),
                        _mm512_set1_ps(exponent.least)));
  const uint32_t grown = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(old_max, none, _CMP_NEQ_UQ),
                                                 new_max, old_max, _CMP_NEQ_UQ);
  for (uint32_t left = grown; left != 0; left &= left - 1) {
    const int64_t row = first + __builtin_ctz(left);
    float* sum = rows.sum + (at.row + row) * 16;
    _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), _mm512_set1_ps(step.factor[row])));
  }
  step.grown = (first == 0 ? 0 : step.grown) | grown << first;
}

// The scores of one row become weights in bf16, as the left operand of P.V:
// [group of 32 keys][part][row half][row][16 pairs of keys that are 16 apart]. Of the first kGroups
// groups, 2 or kKeyGroups: keys that are hidden add zeros to the sum, so that it is the same.
template <int kParts, int kGroups>
ATTND_CPU_INLINE void Weights(const Exponent& exponent, float shift, int64_t row, float* scores,
                              float* sum, uint16_t* p) {
  const __m512 factor = _mm512_set1_ps(exponent.factor);
  const __m512 least = _mm512_set1_ps(exponent.least);
  __m512 e[2 * kGroups];
#pragma GCC unroll 8
  for (int i = 0; i < 2 * kGroups; ++i) {
    const __m512 score = _mm512_load_ps(ScoresOf(scores, row, i));
    e[i] = ExpOf(_mm512_sub_ps(score, _mm512_set1_ps(shift)), factor, least);
  }
  __m512 total = _mm512_add_ps(_mm512_add_ps(e[0], e[1]), _mm512_add_ps(e[2], e[3]));
  if constexpr (kGroups == 4) {
    total =
        _mm512_add_ps(total, _mm512_add_ps(_mm512_add_ps(e[4], e[5]), _mm512_add_ps(e[6], e[7])));
  }
  _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), total));
  uint16_t* to = p + row * kDepth;
#pragma GCC unroll 4
  for (int group = 0; group < kGroups; ++group, to += kParts * 2 * kTileElems) {
    const __m512i high = PackBF16(e[2 * group], e[2 * group + 1]);
    _mm512_store_si512(to, high);
    if constexpr (kParts == 2) {
      const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
      const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(high, 16));
      const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(high, upper));
      _mm512_store_si512(to + 2 * kTileElems, PackBF16(_mm512_sub_ps(e[2 * group], even),
                                                       _mm512_sub_ps(e[2 * group + 1], odd)));
    }
  }
}

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_SOFTMAX_H_
