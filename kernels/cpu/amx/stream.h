// Steps of bf16 that need no mask, one after another: at the same time the tile unit multiplies for
// the scores of one step and for P.V of the step before, and the vector units turn scores that were
// just stored into weights. Included by the AMX kernel's unit alone.
#ifndef ATTND_KERNELS_CPU_AMX_STREAM_H_
#define ATTND_KERNELS_CPU_AMX_STREAM_H_

#include <type_traits>

#include "kernels/cpu/amx/columns.h"
#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/amx/softmax.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

// One step of a stream: 32 rows and 128 keys.
struct Stage {
  const uint16_t* q;  // as PackQuery leaves it
  const uint16_t* k;  // as PackKeys does
  const uint16_t* v;  // as PackValues does, the first 16 columns
  float* o;           // the first row half's first column
  RowState rows;      // from the first row on
};

// Invariants.
//  1. Weights are relative to references that are known before the step begins, so they need not
//     wait for its maxima. A score that passes its row's reference by more than the slack ends the
//     stream before its step has changed a sum or O.
//  2. Scores live in the L1: two groups of 32 keys take turns.
template <int kSteps>
class Stream {
 public:
  static constexpr int64_t kWeightElems = kBlockRows * kStepKeys;  // of a step
  static constexpr int64_t kGroupScores = kBlockRows * 32;
  static constexpr int64_t kTotalElems = kBlockRows * 16;
  static constexpr int64_t ScratchFloats() { return 2 * (kGroupScores + 2 * kTotalElems) + 256; }

  // `weights`: of two steps; `scratch`: ScratchFloats. Columns of V are `v_elems` apart, the two
  // row halves of O `half_o_elems`.
  Stream(const Exponent& exponent, int64_t v_elems, int64_t half_o_elems, uint16_t* weights,
         float* scratch)
      : exponent_(exponent),
        v_elems_(v_elems),
        half_o_elems_(half_o_elems),
        weights_(weights),
        scores_(scratch),
        totals_(scratch + 2 * kGroupScores),
        columns_(totals_ + 4 * kTotalElems) {}

  // Runs the stages that `next`(stage) gives, until it returns false. Returns how many were
  // completed: fewer than given if a score of the one that follows passed its reference.
  template <typename Next>
  int64_t Run(Next next) {
    int64_t count = next(At(0)) ? 1 : 0;
    bool overlaps = false;
    for (int64_t i = 0; i < count + 2; ++i) {
      if (i + 1 == count && next(At(count))) ++count;
      const bool overlapped = overlaps;
      overlaps = i >= 2 && i < count;
      if (overlaps && !overlapped) columns_.Begin<kSteps, false>(ScoreColumn(i, 0));
      if (!overlaps && overlapped) columns_.End();
      if (overlaps ? Overlapped(i, i + 1 < count) : Apart(i, count)) continue;
      if (overlaps) columns_.End();
      return i - 1;
    }
    return count;
  }

 private:
  static constexpr int kColumns = 2 * kSteps;  // of O
  static constexpr int kPairs = kBlockRows / 2;

  // In a quarter of a step, two columns of scores are computed, and the weights of the two before;
  // P.V is as far behind as its weights demand.
  static constexpr int Before(int quarter) { return (quarter + 3) % 4; }
  static constexpr int FirstColumn(int quarter) { return kColumns * quarter / 4; }

  Stage& At(int64_t stage) { return stages_[stage % 4]; }
  uint16_t* WeightsOf(int64_t stage) { return weights_ + stage % 2 * kWeightElems; }
  float* TotalsOf(int64_t stage) { return totals_ + stage % 2 * kTotalElems; }
  ATTND_CPU_INLINE float* ScoresOf(int64_t column) { return scores_ + column % 4 * 512; }

  ATTND_CPU_INLINE Column ScoreColumn(int64_t stage, int64_t column) {
    return {At(stage).q, At(stage).k + column * kSteps * kTileElems, ScoresOf(column), 256};
  }
  ATTND_CPU_INLINE Column OutputColumn(int64_t stage, int64_t column) {
    return {WeightsOf(stage), At(stage).v + column * v_elems_, At(stage).o + column * 256,
            half_o_elems_};
  }

  // Step i's scores, and what is left of the steps before. False if step i - 1 cannot be completed.
  bool Overlapped(int64_t i, bool more) {
    Quarter<0>(i, i);
    if (!Complete(i - 1)) return false;
    Quarter<1>(i, i);
    Quarter<2>(i, i);
    Quarter<3>(i, more ? i + 1 : i);
    return true;
  }

  template <int quarter>
  ATTND_CPU_INLINE void Quarter(int64_t i, int64_t next_stage) {
    constexpr int kBefore = Before(quarter);
    constexpr int kFirst = FirstColumn(kBefore), kEnd = FirstColumn(kBefore + 1);
    constexpr int kAll = 2 + kEnd - kFirst;
    const int64_t weights = quarter == 0 ? i - 1 : i;
    const int64_t values = quarter == 0 ? i - 2 : i - 1;
    // Weights of a share of the rows for each column, after its products.
    const auto share =
        [ this, weights ](auto column, int slot, int slots) __attribute__((always_inline)) {
      constexpr int kBegin = kPairs * column.value / kAll;
      constexpr int kShare = kPairs * (column.value + 1) / kAll - kBegin;
      for (int pair = kShare * slot / slots; pair < kShare * (slot + 1) / slots; ++pair) {
        Weigh<kBefore>(weights, kBegin + pair);
      }
    };
    constexpr std::integral_constant<int, 0> kColumn0;
    constexpr std::integral_constant<int, 1> kColumn1;
    constexpr std::integral_constant<int, 2> kColumn2;
    constexpr std::integral_constant<int, kAll - 1> kColumnLast;
    constexpr int kScoreSlots = 2 * kSteps, kOutputSlots = 2 * kKeyGroups;
    const Column first = OutputColumn(values, kFirst);
    columns_.Multiply<kSteps, false, kSteps, false>(
        ScoreColumn(i, 2 * quarter),
        ScoreColumn(i, 2 * quarter + 1), [&](int slot) __attribute__((always_inline)) {
          share(kColumn0, slot, kScoreSlots);
        });
    columns_.Multiply<kSteps, false, kKeyGroups, true>(
        ScoreColumn(i, 2 * quarter + 1), first, [&](int slot) __attribute__((always_inline)) {
          share(kColumn1, slot, kScoreSlots);
        });
    if constexpr (kAll == 4) {
      columns_.Multiply<kKeyGroups, true, kKeyGroups, true>(
          first, OutputColumn(values, kFirst + 1), [&](int slot) __attribute__((always_inline)) {
            share(kColumn2, slot, kOutputSlots);
          });
    }
    columns_.Multiply<kKeyGroups, true, kSteps, false>(
        OutputColumn(values, kEnd - 1), ScoreColumn(next_stage, (2 * quarter + 2) % kKeyVectors),
        [&](int slot) __attribute__((always_inline)) { share(kColumnLast, slot, kOutputSlots); });
  }

  // The same where steps are missing, one thing after the other.
  __attribute__((noinline)) bool Apart(int64_t i, int64_t count) {
    if (i >= 2) Outputs(i - 2, FirstColumn(3), kColumns);
    if (i >= 1 && i <= count) {
      for (int pair = 0; pair < kPairs; ++pair) Weigh<3>(i - 1, pair);
      if (!Complete(i - 1)) return false;
    }
    if (i < count) {
      Scores(i, 0);
      Scores(i, 1);
      for (int pair = 0; pair < kPairs; ++pair) Weigh<0>(i, pair);
      Scores(i, 2);
      for (int pair = 0; pair < kPairs; ++pair) Weigh<1>(i, pair);
      Scores(i, 3);
      for (int pair = 0; pair < kPairs; ++pair) Weigh<2>(i, pair);
    }
    if (i >= 1 && i <= count) Outputs(i - 1, 0, FirstColumn(3));
    return true;
  }

  void Scores(int64_t stage, int64_t group) {
    const Column first = ScoreColumn(stage, 2 * group), second = ScoreColumn(stage, 2 * group + 1);
    columns_.Begin<kSteps, false>(first);
    columns_.Multiply<kSteps, false, kSteps, false>(first, second, [](int) {});
    columns_.Multiply<kSteps, false, kSteps, false>(second, second, [](int) {});
    columns_.End();
  }

  void Outputs(int64_t stage, int64_t begin, int64_t end) {
    if (begin == end) return;
    columns_.Begin<kKeyGroups, true>(OutputColumn(stage, begin));
    for (int64_t column = begin; column < end; ++column) {
      columns_.Multiply<kKeyGroups, true, kKeyGroups, true>(
          OutputColumn(stage, column), OutputColumn(stage, column + 1 < end ? column + 1 : column),
          [](int) {});
    }
    columns_.End();
  }

  // The scores of two rows and 32 keys become weights, the left operand of P.V.
  template <int group>
  ATTND_CPU_INLINE void Weigh(int64_t stage, int64_t pair) {
    const __m512 factor = _mm512_set1_ps(exponent_.factor);
    const __m512 least = _mm512_set1_ps(exponent_.least);
    const float* scores = ScoresOf(2 * group) + pair * 32;
    const RowState& rows = At(stage).rows;
    const float* reference = rows.reference + pair * 2;
    __m512 e[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      e[i] = _mm512_sub_ps(_mm512_load_ps(scores + i % 2 * 512 + i / 2 * 16),
                           _mm512_set1_ps(reference[i / 2]));
    }
    // Of a NaN and a number the second operand is taken: a NaN hides no excess of another row.
    excess_[0] = _mm512_max_ps(_mm512_max_ps(e[0], e[1]), excess_[0]);
    excess_[1] = _mm512_max_ps(_mm512_max_ps(e[2], e[3]), excess_[1]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) e[i] = ExpOf(e[i], factor, least);
    float* total = TotalsOf(stage) + pair * 32;
    uint16_t* p = WeightsOf(stage) + group * 2 * kTileElems + pair * 2 * kDepth;
    const auto add = [](float* to, __m512 a, __m512 b) __attribute__((always_inline)) {
      const __m512 sum = _mm512_add_ps(a, b);
      _mm512_store_ps(to, group == 0 ? sum : _mm512_add_ps(_mm512_load_ps(to), sum));
    };
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      add(total + i * 16, RoundToBF16(e[2 * i]), RoundToBF16(e[2 * i + 1]));
      _mm512_store_si512(p + i * kDepth, PackBF16(e[2 * i], e[2 * i + 1]));
    }
    if (rows.lse_sum == nullptr) return;
    total += 2 * kTotalElems;
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) add(total + i * 16, e[2 * i], e[2 * i + 1]);
  }

  // All weights of the step are there. False if one of them is too large; otherwise their totals
  // are added to the sums.
  bool Complete(int64_t stage) {
    const __m512 excess = _mm512_max_ps(excess_[0], excess_[1]);
    excess_[0] = excess_[1] = _mm512_set1_ps(-kInfinity);
    if (_mm512_cmp_ps_mask(excess, _mm512_set1_ps(exponent_.slack), _CMP_GT_OQ) != 0) return false;
    const float* total = TotalsOf(stage);
    for (float* sum : {At(stage).rows.sum, At(stage).rows.lse_sum}) {
      if (sum == nullptr) continue;
      for (int64_t i = 0; i < kTotalElems; i += 16) {
        _mm512_store_ps(sum + i, _mm512_add_ps(_mm512_load_ps(sum + i), _mm512_load_ps(total + i)));
      }
      total += 2 * kTotalElems;
    }
    return true;
  }

  const Exponent exponent_;
  const int64_t v_elems_;
  const int64_t half_o_elems_;
  uint16_t* const weights_;
  float* const scores_;
  float* const totals_;  // of two steps, then those that are not rounded
  ColumnProducts columns_;
  Stage stages_[4];  // under way, by number
  __m512 excess_[2] = {_mm512_set1_ps(-kInfinity), _mm512_set1_ps(-kInfinity)};
};

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_STREAM_H_
