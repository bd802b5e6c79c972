// Scores of 32 rows and 32 keys become weights, row by row, for who has other things to do between.
// Included by the AMX kernel's unit alone.
#ifndef ATTND_KERNELS_CPU_AMX_WEIGHER_H_
#define ATTND_KERNELS_CPU_AMX_WEIGHER_H_

#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/amx/softmax.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

// 32 keys of a step.
struct Group {
  static constexpr int64_t kColumn = kBlockRows * 16;  // of scores: [16 keys][row][16]

  RowState rows;  // from the first row on
  const float* scores;
  uint16_t* weights;  // the left operand of P.V: [row half][row][16 pairs of keys]
  int64_t place;      // of the first, as Tops has it
};

// Each row takes four phases, beside those of the rows after it. Tiles are loaded ahead of an
// instruction that waits by three or four alone (measured), so none may wait for long.
template <bool kForLse>
class Weigher {
 public:
  // `totals`: with kForLse, [row][16] lanes to which the weights are added, not rounded.
  ATTND_CPU_INLINE Weigher(const Exponent& exponent, const Group& group, float* totals)
      : offset_(group.rows.offset),
        bar_(group.rows.tops.bar),
        scores_(group.scores),
        weights_(group.weights),
        totals_(totals),
        factor_(_mm512_set1_ps(exponent.factor)) {}

  // Rows 0, 1 .. kBlockRows - 1.
  ATTND_CPU_INLINE void Advance(int row) {
    if (row >= 3) Store(row - 3);
    if (row >= 2 && row < kBlockRows + 2) Continue(row - 2);
    if (row >= 1 && row < kBlockRows + 1) Begin(row - 1);
    if (row < kBlockRows) Load(row);
  }

  // After the last row. True if a weight is too large, or NaN; the arguments are the constructor's.
  ATTND_CPU_INLINE bool Finish(const Exponent& exponent, const Group& group) {
    Advance(kBlockRows);
    Advance(kBlockRows + 1);
    Advance(kBlockRows + 2);
    return __builtin_expect(larger_ != 0, 0) && NoteTops(exponent, group, larger_);
  }

 private:
  static constexpr int kSetRows = 4;

  struct Row {
    RoundedExp2 even, odd;
  };

  ATTND_CPU_INLINE void Load(int row) {
    const __m512 offset = _mm512_set1_ps(offset_[row]);
    const float* scores = scores_ + row * 16;
    loaded_.even.x = _mm512_fmadd_ps(_mm512_load_ps(scores), factor_, offset);
    loaded_.odd.x = _mm512_fmadd_ps(_mm512_load_ps(scores + Group::kColumn), factor_, offset);
  }

  ATTND_CPU_INLINE void Begin(int row) {
    begun_ = loaded_;
    const __m512 bar = _mm512_set1_ps(bar_[row]);
    if (row % kSetRows == 0) none_larger_ = 0xffff;
    none_larger_ = _mm512_mask_cmp_ps_mask(none_larger_, begun_.even.x, bar, _CMP_LE_OQ);
    none_larger_ = _mm512_mask_cmp_ps_mask(none_larger_, begun_.odd.x, bar, _CMP_LE_OQ);
    if (row % kSetRows == kSetRows - 1) {
      larger_ |= uint32_t{none_larger_ != 0xffff} << row / kSetRows;
    }
    begun_.even.Begin();
    begun_.odd.Begin();
  }

  ATTND_CPU_INLINE void Continue(int row) {
    continued_ = begun_;
    continued_.even.Continue();
    continued_.odd.Continue();
    if constexpr (kForLse) {
      float* total = totals_ + row * 16;
      const __m512 sum = _mm512_add_ps(ExactExp2(continued_.even.x), ExactExp2(continued_.odd.x));
      _mm512_store_ps(total, _mm512_add_ps(_mm512_load_ps(total), sum));
    }
  }

  ATTND_CPU_INLINE void Store(int row) {
    const __m512i even = continued_.even.End(), odd = continued_.odd.End();
    _mm512_store_si512(weights_ + row * kDepth, PackLower(even, odd));
  }

  static __attribute__((noinline)) bool NoteTops(const Exponent& exponent, const Group& group,
                                                 uint32_t sets) {
    bool too_large = false;
    for (; sets != 0; sets &= sets - 1) {
      const int64_t first = __builtin_ctz(sets) * kSetRows;
#pragma GCC unroll 4
      for (int64_t row = first; row < first + kSetRows; ++row) {
        const RowState of = group.rows.From(row);
        const __m512 factor = _mm512_set1_ps(exponent.factor);
        const __m512 offset = _mm512_set1_ps(*of.offset);
        const float* scores = group.scores + row * 16;
        const __m512 x[2] = {
            _mm512_fmadd_ps(_mm512_load_ps(scores), factor, offset),
            _mm512_fmadd_ps(_mm512_load_ps(scores + Group::kColumn), factor, offset)};
        too_large |= _mm512_cmp_ps_mask(x[0], x[1], _CMP_UNORD_Q) != 0;
        too_large |= NoteTop<2>(x, group.place, of.tops) && *of.tops.exponent[0] > kSlackLog2;
      }
    }
    return too_large;
  }

  const float* const offset_;
  const float* const bar_;
  const float* const scores_;
  uint16_t* const weights_;
  float* const totals_;
  const __m512 factor_;
  Row loaded_, begun_, continued_;  // three rows under way
  __mmask16 none_larger_;           // of a set of rows: no exponent is above its row's bar
  uint32_t larger_ = 0;             // set by set: one is
};

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_WEIGHER_H_
