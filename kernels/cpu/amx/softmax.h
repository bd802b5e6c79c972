// The softmax of one step of the AMX kernel: 32 rows and 128 keys, a vector 16 keys of a row.
// Included by the AMX kernel's unit alone.
//
// While tiles are at work, the multiplier of port 5 is closed to vectors (measured: 96
// multiplications among tile loads take 93 cycles, 46 without; additions, integers and comparisons
// keep both ports). So what counts is the multiplier's operations: 5 for 16 scores, and half as
// many others.
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

// Weights are up to 2^48. They and values up to 2^48 (see PackValues) add up to no overflow.
constexpr float kSlackLog2 = 48;

// Scores in the caller's unit, times `factor`, are exponents of 2.
struct Exponent {
  float factor;
  float least;  // of differences of scores: exp is 2^-126 there, the least normal number
  // References whose exponents are smaller are subtracted by the multiply-add that scales a score:
  // they are rounded then, by less than 1, and alike for all keys. fp16 has none.
  float near;

  static ATTND_CPU_INLINE Exponent Of(float factor, int parts) {
    const float least = -126.0f / factor;  // -inf for a subnormal factor
    return {factor, least < -__FLT_MAX__ ? -__FLT_MAX__ : least, parts == 1 ? 0x1p24f : 0.0f};
  }
  ATTND_CPU_INLINE __mmask16 IsNear(__m512 reference) const {
    const __m512 exponent = _mm512_mul_ps(reference, _mm512_set1_ps(factor));
    return _mm512_cmp_ps_mask(_mm512_abs_ps(exponent), _mm512_set1_ps(near), _CMP_LT_OQ);
  }
};

// 2^x rounded to bf16, but for an error of 8.6e-5 of it: a twentieth of what the rounding is in the
// mean. The bits of a number 2^e (1 + m) in bf16 are 128 (e + m + 127), so that what is rounded is
// the sum of x and of m - r, r being x's fraction. 0 where 2^x would be below 2^-127, -inf
// included, and a subnormal number up to 2^-126, which products count as 0. x <= 48. In phases, for
// who works on several numbers at once.
struct RoundedExp2 {
  __m512 x, r, g;

  ATTND_CPU_INLINE void Begin() {
    x = _mm512_max_ps(_mm512_set1_ps(-127.0f), x);  // NaN stays
    constexpr int kFraction = 1;                    // of VREDUCEPS: x - floor(x)
    r = _mm512_reduce_ps(x, kFraction);
    // Minimax fit of 2^r - 1 - r on [0, 1], relative to 2^r, without a constant.
    g = _mm512_fmadd_ps(_mm512_set1_ps(0x1.3baadp-4f), r, _mm512_set1_ps(0x1.d23772p-3f));
  }
  ATTND_CPU_INLINE void Continue() {
    g = _mm512_fmadd_ps(g, r, _mm512_set1_ps(-0x1.38334cp-2f));
    g = _mm512_fmadd_ps(g, r, x);
  }
  // In the lower halves of the lanes; for a NaN anything.
  ATTND_CPU_INLINE __m512i End() const {
    constexpr float kInteger = 0x1.8p16f;  // the last place of a sum with it is 1/128
    return _mm512_castps_si512(_mm512_add_ps(g, _mm512_set1_ps(kInteger + 127)));
  }
  // NaN for NaN.
  static ATTND_CPU_INLINE __m512i Of(__m512 x) {
    RoundedExp2 exp = {x, x, x};
    exp.Begin();
    exp.Continue();
    return _mm512_mask_mov_epi32(exp.End(), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                 _mm512_set1_epi32(0x7fc0));
  }
};

// Within 3e-6 of the value.
ATTND_CPU_INLINE __m512 ExactExp2(__m512 x) {
  return ExpOf(x, _mm512_set1_ps(1.0f), _mm512_set1_ps(-126.0f));
}

// The lower halves: lane i holds even[i]'s, then odd[i]'s.
ATTND_CPU_INLINE __m512i PackLower(__m512i even, __m512i odd) {
  return _mm512_mask_alignr_epi8(even, 0xcccccccccccccccc, odd, odd, 14);
}

// Likewise the upper halves.
ATTND_CPU_INLINE __m512i PackUpper(__m512 even, __m512 odd) {
  const __m512i low = _mm512_castps_si512(even);
  return _mm512_mask_alignr_epi8(_mm512_castps_si512(odd), 0x3333333333333333, low, low, 2);
}

// What PackUpper keeps of a number.
ATTND_CPU_INLINE __m512 Upper(__m512 v) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), mask));
}

// Rounded to bf16, halves away from zero, as PackUpper does it. Without AVX512-BF16's instruction,
// which takes the multiplier twice.
ATTND_CPU_INLINE __m512i PackBF16(__m512 even, __m512 odd) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const auto add = [&](__m512 v) __attribute__((always_inline)) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), half));
  };
  return PackUpper(add(even), add(odd));
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

// bf16: a weight of each row that none exceeds by much, and the one that was it before. See
// AddResiduals.
struct Tops {
  static constexpr float kMuch = 0.5f;  // in exponents: fewer notes, nearly as good ones

  float* exponent[2];
  int32_t* place[2];  // the key, counted from the chunk's first; -1 for none, or one that is 1
  float* bar;         // what an exponent is noted above; at most kSlackLog2

  ATTND_CPU_INLINE Tops From(int64_t row) const {
    return {{exponent[0] + row, exponent[1] + row}, {place[0] + row, place[1] + row}, bar + row};
  }

  static ATTND_CPU_INLINE __m512 BarOf(__m512 exponents) {
    return _mm512_min_ps(_mm512_add_ps(exponents, _mm512_set1_ps(kMuch)),
                         _mm512_set1_ps(kSlackLog2));
  }

  // Of the first row.
  ATTND_CPU_INLINE void Note(float new_exponent, int64_t new_place) const {
    *exponent[1] = *exponent[0];
    *place[1] = *place[0];
    *exponent[0] = new_exponent;
    *place[0] = static_cast<int32_t>(new_place);
    *bar = _mm512_cvtss_f32(BarOf(_mm512_set1_ps(new_exponent)));
  }
};

// What the softmax knows of a block of rows; arrays of kBlockRows, of a task's rows together.
struct RowState {
  // What the scores are measured by: the maximum of a row's first step, raised to that of a later
  // one which exceeds it by more than the slack. Any reference gives the same quotient of sums, as
  // long as no weight overflows.
  float* reference;
  float* offset;  // minus a near reference's exponent; 0 for others
  // [row][16] lanes that add up to the running sum of exp(score - reference). bf16: for LSE alone,
  // null if that is not wanted; see OutputColumns.
  float* sum;
  Tops tops;

  // In memory of Floats(rows); `rows` is a multiple of 16.
  static constexpr int64_t Floats(int64_t rows) { return rows * (2 + 5 + 16); }
  static RowState At(float* memory, int64_t rows, bool with_sum) {
    RowState state;
    const auto take = [&](int64_t floats) {
      float* const from = memory;
      memory += floats;
      return from;
    };
    state.reference = take(rows);
    state.offset = take(rows);
    for (float*& exponent : state.tops.exponent) exponent = take(rows);
    for (int32_t*& place : state.tops.place) place = reinterpret_cast<int32_t*>(take(rows));
    state.tops.bar = take(rows);
    state.sum = with_sum ? memory : nullptr;
    return state;
  }

  // Nothing was seen by the first `rows`, a multiple of 16.
  void Clear(int64_t rows) const {
    const __m512 none = _mm512_set1_ps(-kInfinity);
    for (int64_t row = 0; row < rows; row += 16) {
      _mm512_store_ps(reference + row, none);
      _mm512_store_ps(offset + row, _mm512_setzero_ps());
      _mm512_store_ps(tops.bar + row, none);
      for (float* exponent : tops.exponent) _mm512_store_ps(exponent + row, none);
      for (int32_t* place : tops.place) _mm512_store_si512(place + row, _mm512_set1_epi32(-1));
    }
    for (int64_t i = 0; sum != nullptr && i < rows * 16; i += 16) {
      _mm512_store_ps(sum + i, _mm512_setzero_ps());
    }
  }

  ATTND_CPU_INLINE RowState From(int64_t row) const {
    return {reference + row, offset + row, sum == nullptr ? nullptr : sum + row * 16,
            tops.From(row)};
  }
  // Of a block that begins with the first row.
  ATTND_CPU_INLINE bool BlockIsNear(const Exponent& exponent) const {
    return (exponent.IsNear(_mm512_load_ps(reference)) &
            exponent.IsNear(_mm512_load_ps(reference + 16))) == 0xffff;
  }
};

// Of the step under way.
struct StepState {
  alignas(64) float shift[kBlockRows];   // the reference; 0 where that is near or -inf
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
  int64_t row;     // of the task's rows, the block's first
  int64_t key;     // the step's first
  uint32_t exact;  // bit i: the block's row i sees large values; its reference becomes the maximum
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

// The references of 16 rows from `first` on, and what follows from them, the sums' rescaling
// included. With kGeneral, softcap and ALiBi are applied; with kEdge, hidden keys become -inf; both
// are stored. Not inlined: its instances serve every head_dim.
template <int kVectors, bool kEdge, bool kGeneral>
__attribute__((noinline)) void NewReferences(const Place& at, const Exponent& exponent,
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
  const RowState of = rows.From(at.row + first);
  const __m512 old = _mm512_load_ps(of.reference), old_offset = _mm512_load_ps(of.offset);
  const __m512 max = ReduceEach(
      v, [](__m512 a, __m512 b) __attribute__((always_inline)) { return _mm512_max_ps(a, b); });
  const __m512 none = _mm512_set1_ps(-kInfinity);
  const __m512 factor = _mm512_set1_ps(exponent.factor);
  const auto shift_of = [&](__m512 reference) __attribute__((always_inline)) {
    const __mmask16 far = ~exponent.IsNear(reference);
    return _mm512_maskz_mov_ps(_mm512_mask_cmp_ps_mask(far, reference, none, _CMP_NEQ_UQ),
                               reference);
  };
  const __m512 slack = _mm512_mask_mov_ps(
      _mm512_set1_ps(kSlackLog2), static_cast<__mmask16>(at.exact >> first), _mm512_setzero_ps());
  const __m512 old_shift = shift_of(old);
  const __m512 excess = _mm512_fmadd_ps(_mm512_sub_ps(max, old_shift), factor, old_offset);
  const __mmask16 raised =
      _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(max, old, _CMP_GT_OQ), excess, slack, _CMP_GT_OQ) |
      _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(old, none, _CMP_EQ_OQ), max, none, _CMP_GT_OQ);
  const __m512 raised_to = _mm512_mask_mov_ps(old, raised, max);
  const __m512 shift = shift_of(raised_to);
  const __m512 offset =
      _mm512_maskz_mul_ps(exponent.IsNear(raised_to), raised_to, _mm512_set1_ps(-exponent.factor));
  _mm512_store_ps(of.reference, raised_to);
  _mm512_store_ps(of.offset, offset);
  const __m512 top = _mm512_fmadd_ps(_mm512_sub_ps(max, shift), factor, offset);
  _mm512_mask_store_ps(of.tops.exponent[0], raised, top);
  _mm512_mask_store_ps(of.tops.bar, raised, Tops::BarOf(top));
  for (int32_t* place : of.tops.place) {
    _mm512_mask_store_epi32(place, raised, _mm512_set1_epi32(-1));
  }
  _mm512_store_ps(step.shift + first, shift);
  _mm512_store_ps(step.factor + first,
                  ExactExp2(_mm512_fmadd_ps(_mm512_sub_ps(old_shift, shift), factor,
                                            _mm512_sub_ps(offset, old_offset))));
  const uint32_t grown = _mm512_mask_cmp_ps_mask(raised, old, none, _CMP_NEQ_UQ);
  for (uint32_t left = rows.sum == nullptr ? 0 : grown; left != 0; left &= left - 1) {
    const int64_t row = first + __builtin_ctz(left);
    float* sum = rows.sum + (at.row + row) * 16;
    _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), _mm512_set1_ps(step.factor[row])));
  }
  step.grown = (first == 0 ? 0 : step.grown) | grown << first;
}

// Adds the weights of a row, `of`(i) the i-th vector's, to its sum.
template <int kGroups, typename Of>
ATTND_CPU_INLINE void AddTotal(float* sum, Of of) {
  __m512 total = _mm512_add_ps(of(0), of(1));
#pragma GCC unroll 4
  for (int group = 1; group < kGroups; ++group) {
    total = _mm512_add_ps(total, _mm512_add_ps(of(2 * group), of(2 * group + 1)));
  }
  _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), total));
}

// If one of the exponents x is above the row's bar, the largest is noted; x[i] is of keys from
// `place` + 16 i on.
template <int kVectors>
ATTND_CPU_INLINE bool NoteTop(const __m512* x, int64_t place, const Tops& tops) {
  const __m512 bar = _mm512_set1_ps(*tops.bar);
  __mmask16 none_larger = 0xffff;
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    none_larger = _mm512_mask_cmp_ps_mask(none_larger, x[i], bar, _CMP_NGT_UQ);
  }
  if (__builtin_expect(none_larger == 0xffff, 1)) return false;
  // Of a NaN and a number the second operand is taken.
  __m512 max = bar;
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) max = _mm512_max_ps(x[i], max);
  const float top = _mm512_reduce_max_ps(max);
  uint32_t first = 0;
#pragma GCC unroll 8
  for (int i = kVectors - 1; i >= 0; --i) {
    const uint32_t equal = _mm512_cmp_ps_mask(x[i], _mm512_set1_ps(top), _CMP_EQ_OQ);
    if (equal != 0) first = i * 16 + __builtin_ctz(equal);
  }
  tops.Note(top, place + first);
  return true;
}

// The scores of one row and a step that begins at `place` become weights in bf16, as the left
// operand of P.V: [group of 32 keys][row half][row][16 pairs of keys that are 16 apart]. Of the
// first kGroups groups, 2 or kKeyGroups: keys that are hidden add zeros to a sum, so that it is the
// same. `rows` begins with the row.
template <int kGroups>
ATTND_CPU_INLINE void Weights(const Exponent& exponent, float shift, int64_t row, int64_t place,
                              float* scores, const RowState& rows, uint16_t* p) {
  const __m512 factor = _mm512_set1_ps(exponent.factor);
  const __m512 offset = _mm512_set1_ps(*rows.offset);
  __m512 x[2 * kGroups];
  __m512i e[2 * kGroups];
#pragma GCC unroll 8
  for (int i = 0; i < 2 * kGroups; ++i) {
    const __m512 score = _mm512_load_ps(ScoresOf(scores, row, i));
    x[i] = _mm512_fmadd_ps(_mm512_sub_ps(score, _mm512_set1_ps(shift)), factor, offset);
    e[i] = RoundedExp2::Of(x[i]);
  }
  if (rows.sum != nullptr) {
    AddTotal<kGroups>(
        rows.sum, [&](int i) __attribute__((always_inline)) { return ExactExp2(x[i]); });
  }
  uint16_t* to = p + row * kDepth;
#pragma GCC unroll 4
  for (int group = 0; group < kGroups; ++group) {
    _mm512_store_si512(to + group * 2 * kTileElems, PackLower(e[2 * group], e[2 * group + 1]));
  }
  NoteTop<2 * kGroups>(x, place, rows.tops);
}

// The same for fp16, in two parts: [group of 32 keys][part][row half][row][16 pairs].
template <int kGroups>
ATTND_CPU_INLINE void SplitWeights(const Exponent& exponent, float shift, int64_t row,
                                   float* scores, const RowState& rows, uint16_t* p) {
  const __m512 factor = _mm512_set1_ps(exponent.factor);
  const __m512 least = _mm512_set1_ps(exponent.least);
  __m512 e[2 * kGroups];
#pragma GCC unroll 8
  for (int i = 0; i < 2 * kGroups; ++i) {
    const __m512 score = _mm512_load_ps(ScoresOf(scores, row, i));
    e[i] = ExpOf(_mm512_sub_ps(score, _mm512_set1_ps(shift)), factor, least);
  }
  AddTotal<kGroups>(
      rows.sum, [&](int i) __attribute__((always_inline)) { return e[i]; });
  uint16_t* to = p + row * kDepth;
#pragma GCC unroll 4
  for (int group = 0; group < kGroups; ++group, to += 4 * kTileElems) {
    const __m512i high = PackBF16(e[2 * group], e[2 * group + 1]);
    _mm512_store_si512(to, high);
    const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(high, 16));
    const __m512 odd = Upper(_mm512_castsi512_ps(high));
    _mm512_store_si512(to + 2 * kTileElems, PackBF16(_mm512_sub_ps(e[2 * group], even),
                                                     _mm512_sub_ps(e[2 * group + 1], odd)));
  }
}

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_SOFTMAX_H_
