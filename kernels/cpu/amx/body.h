// The AMX kernel: query rows of the heads that share one KV head, flash attention with an online
// softmax. Included by flash_amx.cc alone.
//
// Invariants.
//  1. Every operation on a score or an output is within its row. Steps begin at multiples of
//     kStepKeys, a step without a visible key changes nothing, and a hidden key of a step adds
//     exact zeros: so a row's bits do not depend on which rows it is computed with.
//  2. Hidden scores become -inf by selection. Infinite and NaN elements of V are taken out of the
//     product, and added afterwards to the rows that see them.
#ifndef ATTND_KERNELS_CPU_AMX_BODY_H_
#define ATTND_KERNELS_CPU_AMX_BODY_H_

#include <type_traits>

#include "kernels/cpu/amx/answers.h"
#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/amx/elems.h"
#include "kernels/cpu/amx/pack.h"
#include "kernels/cpu/amx/products.h"
#include "kernels/cpu/amx/residuals.h"
#include "kernels/cpu/amx/rows.h"
#include "kernels/cpu/amx/softmax.h"
#include "kernels/cpu/amx/steps.h"
#include "kernels/cpu/amx/stream.h"
#include "kernels/cpu/amx/tile.h"
#include "kernels/cpu/flash_kernel.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

template <int kSteps, int kParts>
class Task {
 public:
  static constexpr int64_t kDim = kSteps * kDepth;
  static constexpr int64_t kRows = TaskRows(kDim, kParts);
  static constexpr int64_t kChunk = ChunkKeys(kDim, kParts);

  // bf16 up to head_dim 128: see stream.h.
  static constexpr bool kStreamed = kParts == 1 && kSteps <= 4;

  static constexpr int64_t kQElems = kRows * kDim * kParts;
  static constexpr int64_t kKvElems = kChunk * kDim * kParts;
  static constexpr int64_t kColumns = kOutputColumns<kSteps, kParts>;
  static constexpr int64_t kHalfO = kColumns * 256;                   // 16 rows of O
  static constexpr int64_t kGroupWeights = kBlockRows * 32 * kParts;  // 32 keys of P
  static constexpr int64_t kWeightElems = kBlockRows * kBatchKeys * kParts;
  static constexpr int64_t kScoreElems = kBlockRows * kStepKeys;
  static constexpr int64_t ScratchBytes() {
    return 2 * (kQElems + 2 * kKvElems + kWeightElems) +
           4 * (kRows / 16 * kHalfO + 2 * kScoreElems + RowState::Floats(kRows));
  }

  Task(const GroupTile& tile, void* memory) : tile_(tile), columns_(tile.head_dim), walk_(tile) {
    q_ = static_cast<uint16_t*>(memory);
    k_ = q_ + kQElems;
    v_ = k_ + kKvElems;
    p_ = v_ + kKvElems;
    scores_[0] = reinterpret_cast<float*>(p_ + kWeightElems);
    scores_[1] = scores_[0] + kScoreElems;
    o_ = scores_[1] + kScoreElems;
    state_ = RowState::At(o_ + kRows / 16 * kHalfO, kRows, kParts == 2 || tile.lse != nullptr);
    general_ = tile.softcap > 0 || tile.alibi_slopes != nullptr;
    exponent_ = Exponent::Of(general_ ? kLog2E : tile.scale * kLog2E, kParts);
  }

  void Run() {
    ConfigureTiles();
    Begin();
    const KeyRange keys = walk_.KeysOf(0, tile_.rows);
    const int64_t first = RoundDown(keys.begin, kChunk);
    one_chunk_ = keys.end <= first + (kStreamed ? Min(kChunk, kBatchKeys) : kChunk);
    for (int64_t chunk = first; chunk < keys.end; chunk += kChunk) {
      PackChunk(chunk, keys);
      RunChunk();
      for (int64_t row = 0; !one_chunk_ && row < tile_.rows; row += kBlockRows) AddResidualsOf(row);
    }
    ReleaseTiles();
    for (int64_t row = 0; row < tile_.rows; row += kBlockRows) {
      if (!one_chunk_ || !begun_[row / kBlockRows]) Finish(row);
    }
  }

 private:
  void Begin() {
    const int64_t rows = tile_.rows;
    RowWalk walk(tile_, 0, tile_.q, tile_.q_row_stride_bytes, tile_.q_head_stride_bytes);
    for (int64_t first = 0; first < rows; first += kBlockRows) {
      begun_[first / kBlockRows] = false;
      bad_rows_[first / kBlockRows] =
          PackBlock(walk, Min(kBlockRows, rows - first), q_ + first * kDim * kParts);
    }
    state_.Clear(RoundUp(rows, 16));
  }

  // A block's queries, with zeros up to a whole row half. Bits as of bad_rows_.
  uint32_t PackBlock(RowWalk<const unsigned char*>& walk, int64_t rows, uint16_t* block) const {
    const Columns<kSteps> columns = columns_;
    RowWalk local = walk;
    uint32_t bad = 0;
    for (int64_t row = 0; row < rows; ++row) {
      bad |= uint32_t{PackQuery<kSteps, kParts>(local.Next(), columns, row, block)} << row;
    }
    for (int64_t row = rows; row % 16 != 0; ++row) {
      PackQuery<kSteps, kParts>(nullptr, {}, row, block);
    }
    walk = local;
    return bad;
  }

  // What the task needs of the chunk's keys, in whole steps.
  void PackChunk(int64_t chunk, const KeyRange& keys) {
    chunk_ = chunk;
    begin_ = Max(chunk, RoundDown(keys.begin, kStepKeys));
    end_ = Min(chunk + kChunk, keys.end);
    column_elems_ = RoundUp(end_ - chunk, 32) * 16 * kParts;
    for (int64_t key = begin_; key < end_; key += 32) {
      uint16_t* to = KeysAt(key);
      const uint32_t first = PackKeys<kSteps, kParts>(tile_.k, key, end_, columns_, to);
      to += 16 * kDim * kParts;
      const uint32_t second = PackKeys<kSteps, kParts>(tile_.k, key + 16, end_, columns_, to);
      bad_keys_[(key - chunk_) / 32] = first | second << 16;
    }
    for (int64_t key = begin_; key < end_; key += 32) {
      const Values values =
          PackValues<kSteps, kParts>(tile_.v, key, end_, columns_, column_elems_, ValuesAt(key));
      Values& of_step = values_[(key - chunk_) / kStepKeys];
      if (key % kStepKeys == 0 || values > of_step) of_step = values;
    }
  }

  uint16_t* KeysAt(int64_t key) const { return k_ + (key - chunk_) * kDim * kParts; }
  // Of the first group of columns; the others' follow, each after column_elems_.
  uint16_t* ValuesAt(int64_t key) const { return v_ + (key - chunk_) / 32 * kTileElems * kParts; }

  void RunChunk() {
    if (!kStreamed || one_chunk_) return RunPart(Part::kAll);
    for (int64_t i = 0; i * kBlockRows < tile_.rows; ++i) fresh_[i] = !begun_[i];
    for (Part part : {Part::kFirst, Part::kInner, Part::kLast}) RunPart(part);
  }

  // See residuals.h. At the end of a chunk, as they need its packed values.
  void AddResidualsOf(int64_t block_row) {
    if (kParts == 2 || !begun_[block_row / kBlockRows]) return;
    const int64_t end = Min(block_row + kBlockRows, tile_.rows);
    for (int64_t first = block_row; first < end; first += 16) {
      AddResiduals<kSteps>(state_.From(first).tops, v_, column_elems_, OutputOf(first, 0));
    }
  }

  void RunPart(Part part) {
    walk_.Start(begin_, end_, part, fresh_);
    Step step;
    bool more = walk_.First(step);
    bool plain = more && !Streams(step);
    while (more) {
      if (plain) {
        more = RunPlain(step);
        plain = !kStreamed;
      } else if constexpr (kStreamed) {
        bool redo = false;
        more = RunStream(step, redo);
        plain = redo || !Streams(step);
      }
    }
  }

  // Whether the step may be part of a stream: all rows have a reference, and see all keys.
  bool Streams(const Step& step) const {
    if (!kStreamed || general_ || step.edge || step.groups < kKeyGroups || step.block.rows <= 16) {
      return false;
    }
    return state_.From(step.block.row).BlockIsNear(exponent_) &&
           values_[(step.key - chunk_) / kStepKeys] == Values::kSmall;
  }

  // Steps from `step` on, as many as can be streamed. Then `step` is the next one; false if there
  // is none. `redo` tells that it has a score beyond its row's reference.
  bool RunStream(Step& step, bool& redo) {
    Step steps[4];  // by number
    Step next = step;
    bool more = true;
    int64_t count = 0;
    Stream<kSteps> stream(exponent_, column_elems_, kHalfO, p_, scores_[0]);
    const int64_t done = stream.Run([&](Stage& stage) {
      if (count > 0) more = walk_.Next(steps[(count - 1) % 4], next);
      if (!more || (one_chunk_ && next.block.row != step.block.row) || !Streams(next)) return false;
      const int64_t row = next.block.row;
      steps[count++ % 4] = next;
      stage = {q_ + row * kDim,  KeysAt(next.key), ValuesAt(next.key),
               OutputOf(row, 0), state_.From(row), next.key - chunk_};
      return true;
    });
    redo = done < count;
    if (one_chunk_ && !redo && (!more || next.block.row != step.block.row)) Finish(step.block.row);
    step = redo ? steps[done % 4] : next;
    return more || redo;
  }

  // Steps from `step` on, at least one, until one can be streamed. Then `step` is that one; false
  // if there is none. While the tile unit multiplies for the scores of one step, the vector units
  // work on the weights of the step before.
  bool RunPlain(Step& step) {
    Step next;
    int at = 0;
    Batch batch = {step.key, 0};
    PlainScores(step, scores_[at]);
    NewReferences(step, scores_[at]);
    Rescale(step);
    while (true) {
      const bool more = walk_.Next(step, next);
      const bool here = more && !Streams(next);
      uint16_t* p = p_ + batch.groups * kGroupWeights;
      if (here && step.block.rows > 16 && next.block.rows > 16) {
        const int64_t rows = step.half() ? ScoresAndWeights<kKeyGroups / 2>(step, next, at, p)
                                         : ScoresAndWeights<kKeyGroups>(step, next, at, p);
        AllWeights(step, rows, scores_[at], p);
      } else {
        AllWeights(step, 0, scores_[at], p);
        if (here) PlainScores(next, scores_[at ^ 1]);
      }
      if (here) NewReferences(next, scores_[at ^ 1]);
      batch.groups += step.groups;
      const bool new_block = !more || next.block.row != step.block.row;
      if (!here || new_block || at_.grown != 0 || batch.groups > kBatchGroups - kKeyGroups) {
        AddValues(step.block, batch);
        batch = {next.key, 0};
      }
      if (one_chunk_ && new_block) Finish(step.block.row);
      step = next;
      if (!here) return more;
      Rescale(next);
      at ^= 1;
    }
  }

  // The scores of `next`, and among them the weights of some rows of `step`, whose groups are up to
  // kGroups: how many.
  template <int kGroups>
  int64_t ScoresAndWeights(const Step& step, const Step& next, int at, uint16_t* p) {
    constexpr int64_t kRowsPerGroup = kBlockRows / kGroups;
    Scores<2, kRowsPerGroup>(
        next, scores_[at ^ 1], [&](int64_t row) __attribute__((always_inline)) {
          if (kGroups == kKeyGroups || row < kBlockRows)
            Weights<kGroups>(step, row, scores_[at], p);
        });
    return Min(next.groups * kRowsPerGroup, kBlockRows);
  }

  void PlainScores(const Step& step, float* scores) {
    step.block.rows > 16 ? Scores<2, 0>(step, scores, [](int64_t) {})
                         : Scores<1, 0>(step, scores, [](int64_t) {});
  }

  // `meanwhile`(row) is called for kRowsPerGroup rows in each group of keys, between products.
  template <int kHalves, int64_t kRowsPerGroup, typename Meanwhile>
  ATTND_CPU_INLINE void Scores(const Step& step, float* scores, Meanwhile meanwhile) {
    const uint16_t* q = q_ + step.block.row * kDim * kParts;
    const uint16_t* k = KeysAt(step.key);
    constexpr int64_t kKeyTile = 16 * kDim * kParts;
    ZeroSums<0, kHalves>();
    ZeroSums<1, kHalves>();
    for (int64_t group = 0; group < step.groups; ++group, k += 2 * kKeyTile) {
      const auto slot = [&](int64_t i) __attribute__((always_inline)) {
        constexpr int64_t kSlots = 4 * kSteps;
        for (int64_t row = kRowsPerGroup * i / kSlots; row < kRowsPerGroup * (i + 1) / kSlots;
             ++row) {
          meanwhile(kRowsPerGroup * group + row);
        }
      };
#pragma GCC unroll 8
      for (int64_t i = 0; i < kSteps; ++i) {
        Multiply<0, kHalves, kParts, true>(
            q + i * 2 * kTileElems * kParts,
            k + i * kTileElems * kParts, [&](int64_t j) __attribute__((always_inline)) {
              slot(2 * i + j);
            });
        if (i == 1 && group > 0) {
          StoreSums<1, kHalves>(scores + (2 * group - 1) * 256, kHalfScores);
          ZeroSums<1, kHalves>();
        }
      }
#pragma GCC unroll 8
      for (int64_t i = 0; i < kSteps; ++i) {
        Multiply<1, kHalves, kParts, true>(
            q + i * 2 * kTileElems * kParts,
            k + kKeyTile + i * kTileElems * kParts, [&](int64_t j) __attribute__((always_inline)) {
              slot(2 * (kSteps + i) + j);
            });
        if (i == 1) {
          StoreSums<0, kHalves>(scores + 2 * group * 256, kHalfScores);
          ZeroSums<0, kHalves>();
        }
      }
    }
    StoreSums<1, kHalves>(scores + (2 * step.groups - 1) * 256, kHalfScores);
    if constexpr (kParts == 2) ScoreNotFinite(step, scores);
  }

  // The product of the parts of infinite fp16 numbers has a NaN where theirs is infinite: what such
  // a row of Q or K takes part in is computed again, as it is.
  __attribute__((noinline)) void ScoreNotFinite(const Step& step, float* scores) const {
    const uint32_t bad_rows = bad_rows_[step.block.row / kBlockRows];
    for (int64_t group = 0; group < step.groups; ++group) {
      const uint32_t bad_keys = bad_keys_[(step.key - chunk_) / 32 + group];
      if (bad_keys == 0 && bad_rows == 0) continue;
      const int64_t keys = Min(32, end_ - step.key - group * 32);
      for (int64_t row = 0; row < step.block.rows; ++row) {
        for (int64_t i = 0; i < keys; ++i) {
          if ((bad_rows >> row & 1) == 0 && (bad_keys >> i & 1) == 0) continue;
          const auto* key =
              static_cast<const unsigned char*>(tile_.k.Row(step.key + group * 32 + i));
          ScoresOf(scores, row, 2 * group + i / 16)[i % 16] =
              DotF16(QueryRow(tile_, step.block.row + row), key, tile_.head_dim);
        }
      }
    }
  }

  // O += P.V, for all steps of the batch.
  void AddValues(const Block& block, const Batch& batch) {
    block.rows > 16 ? AddValuesOf<2>(block, batch) : AddValuesOf<1>(block, batch);
    for (int64_t key = batch.key; key < batch.key + batch.groups * 32; key += kStepKeys) {
      if (values_[(key - chunk_) / kStepKeys] == Values::kNotFinite)
        AddNotFinite(block, batch, key);
    }
  }

  template <int kHalves>
  void AddValuesOf(const Block& block, const Batch& batch) {
    float* o = OutputOf(block.row, 0);
    const uint16_t* v = ValuesAt(batch.key);
    bool& begun = begun_[block.row / kBlockRows];
    const auto begin = [&](auto set, const float* from) __attribute__((always_inline)) {
      begun ? LoadSums<set.value, kHalves>(from, kHalfO) : ZeroSums<set.value, kHalves>();
    };
    constexpr std::integral_constant<int, 0> kFirst;
    constexpr std::integral_constant<int, 1> kSecond;
    begin(kFirst, o);
    begin(kSecond, o + 256);
    constexpr int64_t kTiles = kTileElems * kParts;
    for (int64_t column = 0; column < 2 * kSteps; column += 2, v += 2 * column_elems_, o += 512) {
      AddColumn<0, kHalves>(v, kTiles, batch.groups, [&] {
        if (column == 0) return;
        StoreSums<1, kHalves>(o - 256, kHalfO);
        begin(kSecond, o + 256);
      });
      AddColumn<1, kHalves>(v + column_elems_, kTiles, batch.groups, [&] {
        StoreSums<0, kHalves>(o, kHalfO);
        if (column + 2 < kColumns) begin(kFirst, o + 512);
      });
    }
    if constexpr (kParts == 1) AddColumn<0, kHalves>(kOnes.bf16, 0, batch.groups, [] {});
    StoreSums<1, kHalves>(o - 256, kHalfO);
    if constexpr (kParts == 1) StoreSums<0, kHalves>(o, kHalfO);
    begun = true;
  }

  // V's tiles are `v_elems` apart. `change` sees to the other set's sums.
  template <int set, int kHalves, typename Change>
  ATTND_CPU_INLINE void AddColumn(const uint16_t* v, int64_t v_elems, int64_t groups,
                                  Change change) {
    const uint16_t* p = p_;
    for (int64_t group = 0; group < groups; ++group, p += kGroupWeights) {
      Multiply<set, kHalves, kParts, false>(p, v + group * v_elems, [](int64_t) {});
      if (group == (groups > 1 ? 1 : 0)) change();
    }
  }

  void NewReferences(const Step& step, float* scores) {
    for (int64_t first = 0; first < step.block.rows; first += 16) {
      step.half() ? NewReferencesOf<kKeyVectors / 2>(step, first, scores)
                  : NewReferencesOf<kKeyVectors>(step, first, scores);
    }
  }

  template <int kVectors>
  void NewReferencesOf(const Step& step, int64_t first, float* scores) {
    using Function = decltype(&amx::NewReferences<kVectors, false, false>);
    constexpr Function kFunctions[2][2] = {
        {&amx::NewReferences<kVectors, false, false>, &amx::NewReferences<kVectors, true, false>},
        {&amx::NewReferences<kVectors, false, true>, &amx::NewReferences<kVectors, true, true>}};
    const Place place = {&tile_, step.block.row, step.key, ExactRows(step)};
    kFunctions[general_][step.edge](place, exponent_, state_, first, scores, at_);
  }

  // As Place has them: what a row does not see changes nothing for it.
  uint32_t ExactRows(const Step& step) const {
    if (kParts == 2 || values_[(step.key - chunk_) / kStepKeys] == Values::kSmall) return 0;
    return walk_.RowsThatSee(
        step, [&](int64_t key) { return HasLarge<kParts>(tile_.v.Row(key), tile_.head_dim); });
  }

  // Of rows from `row` on.
  void AllWeights(const Step& step, int64_t row, float* scores, uint16_t* p) {
    for (; row < step.block.rows; ++row) {
      step.half() ? Weights<kKeyGroups / 2>(step, row, scores, p)
                  : Weights<kKeyGroups>(step, row, scores, p);
    }
  }

  template <int kGroups>
  ATTND_CPU_INLINE void Weights(const Step& step, int64_t row, float* scores, uint16_t* p) {
    const RowState rows = state_.From(step.block.row + row);
    if constexpr (kParts == 1) {
      amx::Weights<kGroups>(exponent_, at_.shift[row], row, step.key - chunk_, scores, rows, p);
    } else {
      SplitWeights<kGroups>(exponent_, at_.shift[row], row, scores, rows, p);
    }
  }

  void Rescale(const Step& step) {
    for (uint32_t grown = at_.grown; grown != 0; grown &= grown - 1) {
      const int row = __builtin_ctz(grown);
      const __m512 factor = _mm512_set1_ps(at_.factor[row]);
      for (int64_t column = 0; column < kColumns; ++column) {
        float* o = OutputOf(step.block.row + row, column);
        _mm512_store_ps(o, _mm512_mul_ps(_mm512_load_ps(o), factor));
      }
    }
  }

  // 16 columns of a row of O. With one chunk of keys, a block is finished before the next one
  // begins, and all of them have the first one's place, which stays in the L1.
  float* OutputOf(int64_t row, int64_t column) const {
    const int64_t place = one_chunk_ ? row % kBlockRows : row;
    return o_ + place / 16 * kHalfO + column * 256 + row % 16 * 16;
  }

  // Infinite and NaN elements of V from the step at `key` on, in the rows that see them: those
  // whose weight is not 0.
  __attribute__((noinline)) void AddNotFinite(const Block& block, const Batch& batch,
                                              int64_t from) {
    const int64_t end = Min(Min(from + kStepKeys, batch.key + batch.groups * 32), end_);
    for (int64_t key = from; key < end; ++key) {
      alignas(64) float v[kDim];
      __mmask16 masks[kDim / 16];
      if (!NotFiniteOf<kSteps, kParts>(tile_.v.Row(key), tile_.head_dim, v, masks)) continue;
      const int64_t place = key - batch.key;
      const uint16_t* weights = p_ + place / 32 * kGroupWeights + place % 16 * 2 + place % 32 / 16;
      for (int64_t row = 0; row < block.rows; ++row) {
        const uint16_t bits = weights[row * kDepth];
        if (bits == 0) continue;
        const __m512 p = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits) << 16));
        for (int64_t i = 0; i < kDim / 16; ++i) {
          float* o = OutputOf(block.row + row, i);
          _mm512_store_ps(
              o, _mm512_mask3_fmadd_ps(p, _mm512_load_ps(v + 16 * i), _mm512_load_ps(o), masks[i]));
        }
      }
    }
  }

  // The answers of a block's rows: O / sum and LSE; 0 and -inf for one that nothing was left for.
  void Finish(int64_t block_row) {
    if (one_chunk_) AddResidualsOf(block_row);
    const int64_t end = Min(block_row + kBlockRows, tile_.rows);
    RowWalk walk(tile_, block_row, tile_.o, tile_.o_row_stride_bytes, tile_.o_head_stride_bytes);
    for (int64_t first = block_row; first < end; first += 16) {
      const int64_t rows = Min(16, end - first);
      const RowState of = state_.From(first);
      const float* sums = begun_[block_row / kBlockRows] ? OutputOf(first, 2 * kSteps) : nullptr;
      Totals totals = TotalsOf(of, kParts == 2 ? AddLanes(of.sum) : FirstLanes(sums));
      StoreAnswers<kSteps, kParts>(totals, rows, OutputOf(first, 0), columns_, walk);
      if (tile_.lse == nullptr) continue;
      if (kParts == 1) totals = TotalsOf(of, AddLanes(of.sum));
      StoreLse(tile_, totals, of, exponent_, general_ ? 1.0 : tile_.scale, first, rows);
    }
  }

  const GroupTile& tile_;
  const Columns<kSteps> columns_;
  Walk walk_;
  uint16_t* q_;  // [block][step][part][row half][row][32]
  uint16_t* k_;  // [16 keys][step][part][pair of columns][key][2]
  uint16_t* v_;  // [16 columns][32 keys][part][pair of keys][column][2]
  uint16_t* p_;  // [32 keys][part][row half][row][pair of keys][2]
  float* o_;     // [row half][16 columns][row][16], columns as PackValues leaves them, then sums
  float* scores_[2];  // [row half][16 keys][row][16]
  RowState state_;
  StepState at_;
  Exponent exponent_;
  bool general_;
  bool one_chunk_ = false;  // all keys are packed at once, and few
  int64_t chunk_ = 0;       // its first key; what is packed of it: keys [begin_, end_)
  int64_t begin_ = 0;
  int64_t end_ = 0;
  int64_t column_elems_ = 0;           // 16 columns of V
  Values values_[kChunk / kStepKeys];  // step by step
  uint32_t bad_keys_[kChunk / 32];  // 32 by 32: a row has an infinite or NaN element; of fp16 alone
  uint32_t bad_rows_[kRows / kBlockRows];  // likewise a row of Q
  bool begun_[kRows / kBlockRows];         // block by block: O holds something
  bool fresh_[kRows / kBlockRows];         // likewise: it does not, when the chunk begins
};

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_BODY_H_
