// Steps of bf16 that need no mask, one after another: at the same time the tile unit multiplies for
// the scores of one step and for P.V of the step before, and the vector units turn scores that were
// just stored into weights. Included by the AMX kernel's unit alone.
#ifndef ATTND_KERNELS_CPU_AMX_STREAM_H_
#define ATTND_KERNELS_CPU_AMX_STREAM_H_

#include <type_traits>

#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/amx/panels.h"
#include "kernels/cpu/amx/softmax.h"
#include "kernels/cpu/amx/weigher.h"

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
  int64_t place;      // of the first key, as Tops has it
};

// Invariants.
//  1. Weights are relative to references that are known before the step begins, so they need not
//     wait for its maxima. A score that is NaN, or passes its row's reference by more than the
//     slack, ends the stream before its step has changed a sum or O.
//  2. Scores live in the L1: two groups of 32 keys take turns.
template <int kSteps>
class Stream {
 public:
  static constexpr int64_t kWeightElems = kBlockRows * kStepKeys;  // of a step
  static constexpr int64_t kGroupScores = kBlockRows * 32;
  static constexpr int64_t kTotalElems = kBlockRows * 16;
  static constexpr int64_t ScratchFloats() { return 2 * kGroupScores + kTotalElems + 256; }

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
        products_(totals_ + kTotalElems) {
    ClearTotals();
  }

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
      if (overlaps && !overlapped) products_.Begin();
      if (!overlaps && overlapped) products_.End<LeftColumns(2)>();
      if (!(overlaps ? Overlapped(i) : Apart(i, count))) return i - 1;
    }
    return count;
  }

 private:
  // In a quarter of a step, two columns of scores are computed, and the weights of the two before;
  // P.V is as far behind as its weights demand. These are the pairs of its columns that are
  // computed beside the weights of a group of keys; the sums are beside those of the last group.
  static constexpr int FirstPair(int group) { return (kSteps * group + 3) / 4; }
  static constexpr bool HasPair(int group) { return FirstPair(group + 1) > FirstPair(group); }
  // The columns that are left to be stored after such a quarter. Scores are not: the next quarter
  // begins with reading them.
  static constexpr int LeftColumns(int group) { return HasPair(group) ? 2 : group == 3 ? 1 : 0; }

  Stage& At(int64_t stage) { return stages_[stage % 4]; }
  uint16_t* WeightsOf(int64_t stage) { return weights_ + stage % 2 * kWeightElems; }
  ATTND_CPU_INLINE float* ScoresOf(int64_t column) { return scores_ + column % 4 * 512; }

  ATTND_CPU_INLINE Panel ScoresOf(int64_t stage, int64_t group) {
    constexpr int64_t kColumn = kSteps * kTileElems;
    return {At(stage).q,
            At(stage).k + group * 2 * kColumn,
            kTileElems,
            kColumn,
            {ScoresOf(2 * group), 256, Group::kColumn}};
  }
  ATTND_CPU_INLINE Panel OutputsOf(int64_t stage, int64_t pair) {
    return {WeightsOf(stage),
            At(stage).v + pair * 2 * v_elems_,
            kTileElems,
            v_elems_,
            {At(stage).o + pair * 512, half_o_elems_, 256}};
  }
  ATTND_CPU_INLINE Panel SumsOf(int64_t stage) {
    return {WeightsOf(stage), kOnes.bf16, 0, 0, {At(stage).o + kSteps * 512, half_o_elems_, 0}};
  }

  // Step i's scores, and what is left of the steps before. False if step i - 1 cannot be completed.
  bool Overlapped(int64_t i) {
    RunQuarter<3>(i);
    if (!Complete(i - 1)) {
      products_.End<LeftColumns(3)>();
      return false;
    }
    RunQuarter<0>(i);
    RunQuarter<1>(i);
    RunQuarter<2>(i);
    return true;
  }

  // Weights of a group of step i, of the last group of the step before; meanwhile the scores of the
  // group after it, and P.V of the step before that of the weights.
  template <int group>
  ATTND_CPU_INLINE void RunQuarter(int64_t i) {
    constexpr bool kSums = group == 3;
    constexpr int kBefore = LeftColumns((group + 3) % 4);
    const int64_t weights = group == 3 ? i - 1 : i;
    const Panel scores = ScoresOf(i, (group + 1) % 4);
    const Panel pair = OutputsOf(weights - 1, FirstPair(group));
    const Panel sums = SumsOf(weights - 1);
    At(weights).rows.sum != nullptr
        ? Quarter<HasPair(group), kSums, kBefore, true>(scores, pair, sums, GroupOf(weights, group))
        : Quarter<HasPair(group), kSums, kBefore, false>(scores, pair, sums,
                                                         GroupOf(weights, group));
  }

  // A panel of scores, with kSums one of sums of weights, with kPair two columns of O; after each
  // product, some of the group's weights. The quarter before left a panel of kBefore columns to be
  // stored. Few instances serve all quarters, so that their instructions stay in the processor's
  // buffers.
  template <bool kPair, bool kSums, int kBefore, bool kForLse>
  __attribute__((noinline)) void Quarter(const Panel& scores, const Panel& pair, const Panel& sums,
                                         const Group& group) {
    constexpr int kSumSlot = 4 * kSteps, kPairSlot = kSumSlot + (kSums ? 2 * kKeyGroups : 0);
    constexpr int kSlots = kPairSlot + (kPair ? 4 * kKeyGroups : 0);
    constexpr int kAfterSums = kPair ? 2 : 0, kAfterScores = kSums ? 1 : kAfterSums;
    Weigher<kForLse> weigher(exponent_, group, totals_);
    products_.Load<2>(scores);
    products_.Multiply<kBefore, 2, kSteps, false, kAfterScores>(
        scores, kSums ? sums : pair, [&weigher](int slot) __attribute__((always_inline)) {
          Share<kSlots>(weigher, slot);
        });
    if constexpr (kSums) {
      products_.Multiply<2, 1, kKeyGroups, true, kAfterSums>(
          sums, pair, [&weigher](int slot) __attribute__((always_inline)) {
            Share<kSlots>(weigher, kSumSlot + slot);
          });
    }
    if constexpr (kPair) {
      products_.Multiply<kSums ? 1 : 2, 2, kKeyGroups, true, 0>(
          pair, pair, [&weigher](int slot) __attribute__((always_inline)) {
            Share<kSlots>(weigher, kPairSlot + slot);
          });
    }
    if constexpr (kAfterScores == 0) products_.End<2>();
    too_large_ |= weigher.Finish(exponent_, group);
  }

  // What falls to one of kSlots.
  template <int kSlots, typename Weigher>
  static ATTND_CPU_INLINE void Share(Weigher& weigher, int slot) {
    static_assert(kBlockRows <= 4 * kSlots);
    const int end = kBlockRows * (slot + 1) / kSlots;
    int row = kBlockRows * slot / kSlots;
    if (row < end) weigher.Advance(row++);
    if (row < end) weigher.Advance(row++);
    if (row < end) weigher.Advance(row++);
    if (row < end) weigher.Advance(row++);
  }

  // The same where steps are missing, one thing after the other.
  __attribute__((noinline)) bool Apart(int64_t i, int64_t count) {
    if (i >= 2) {
      Outputs(i - 2, FirstPair(3), FirstPair(4));
      const Panel sums = SumsOf(i - 2);
      products_.Load<1>(sums);
      products_.Multiply<0, 1, kKeyGroups, true, 0>(sums, sums, [](int) {});
      products_.End<1>();
    }
    if (i >= 1 && i <= count) {
      WeighAll(GroupOf(i - 1, 3));
      if (!Complete(i - 1)) return false;
    }
    if (i < count) {
      Scores(i, 0);
      for (int group = 0; group < 3; ++group) {
        Scores(i, group + 1);
        WeighAll(GroupOf(i, group));
      }
    }
    if (i >= 1 && i <= count) Outputs(i - 1, 0, FirstPair(3));
    return true;
  }

  void Scores(int64_t stage, int64_t group) {
    const Panel scores = ScoresOf(stage, group);
    products_.Load<2>(scores);
    products_.Multiply<0, 2, kSteps, false, 0>(scores, scores, [](int) {});
    products_.End<2>();
  }

  void Outputs(int64_t stage, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Panel pair = OutputsOf(stage, i);
      products_.Load<2>(pair);
      products_.Multiply<0, 2, kKeyGroups, true, 0>(pair, pair, [](int) {});
      products_.End<2>();
    }
  }

  Group GroupOf(int64_t stage, int group) {
    return {At(stage).rows, ScoresOf(2 * group), WeightsOf(stage) + group * 2 * kTileElems,
            At(stage).place + group * 32};
  }

  void WeighAll(const Group& group) {
    group.rows.sum != nullptr ? WeighAll<true>(group) : WeighAll<false>(group);
  }

  template <bool kForLse>
  __attribute__((noinline)) void WeighAll(const Group& group) {
    Weigher<kForLse> weigher(exponent_, group, totals_);
#pragma GCC unroll 32
    for (int row = 0; row < kBlockRows; ++row) weigher.Advance(row);
    too_large_ |= weigher.Finish(exponent_, group);
  }

  // All weights of the step are there. False if one of them is too large; otherwise what they add
  // up to is added to the sums for LSE.
  bool Complete(int64_t stage) {
    if (too_large_) return false;
    float* sum = At(stage).rows.sum;
    if (sum == nullptr) return true;
    for (int64_t i = 0; i < kTotalElems; i += 16) {
      _mm512_store_ps(sum + i, _mm512_add_ps(_mm512_load_ps(sum + i), _mm512_load_ps(totals_ + i)));
    }
    ClearTotals();
    return true;
  }

  void ClearTotals() {
    for (int64_t i = 0; i < kTotalElems; i += 16) {
      _mm512_store_ps(totals_ + i, _mm512_setzero_ps());
    }
  }

  const Exponent exponent_;
  const int64_t v_elems_;
  const int64_t half_o_elems_;
  uint16_t* const weights_;
  float* const scores_;
  float* const totals_;  // [row][16] of the step whose weights are made, for LSE
  PanelProducts products_;
  Stage stages_[4];         // under way, by number
  bool too_large_ = false;  // a weight of the step whose weights are made
};

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_STREAM_H_
