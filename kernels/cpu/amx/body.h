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

#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/amx/pack.h"
#include "kernels/cpu/amx/softmax.h"
#include "kernels/cpu/amx/tile.h"
#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/give_turn.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

ATTND_CPU_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
ATTND_CPU_INLINE int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }
ATTND_CPU_INLINE int64_t RoundDown(int64_t value, int64_t to) { return value / to * to; }
ATTND_CPU_INLINE int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// One block of rows on one step of keys.
struct Step {
  int64_t row = 0;   // the block's first, of the task's rows
  int64_t rows = 0;  // 1 .. kBlockRows
  int64_t key = 0;
  int64_t groups = 0;  // 1 .. kKeyGroups, of 32 keys: up to the last that the block sees
  bool edge = false;   // some row must not see some of these keys
};

template <int kSteps, int kParts>
class Task {
 public:
  static constexpr int64_t kDim = kSteps * kDepth;
  static constexpr int64_t kRows = TaskRows(kDim, kParts);
  static constexpr int64_t kChunk = ChunkKeys(kDim, kParts);

  static constexpr int64_t kQElems = kRows * kDim * kParts;
  static constexpr int64_t kKvElems = kChunk * kDim * kParts;
  static constexpr int64_t kScoreElems = kBlockRows * kStepKeys;
  static constexpr int64_t ScratchBytes() {
    return 2 * (kQElems + 2 * kKvElems + kScoreElems * kParts) +
           4 * (kRows * kDim + 2 * kScoreElems + kRows * 17);
  }

  Task(const GroupTile& tile, void* memory) : tile_(tile) {
    q_ = static_cast<uint16_t*>(memory);
    k_ = q_ + kQElems;
    v_ = k_ + kKvElems;
    p_ = v_ + kKvElems;
    o_ = reinterpret_cast<float*>(p_ + kScoreElems * kParts);
    scores_[0] = o_ + kRows * kDim;
    scores_[1] = scores_[0] + kScoreElems;
    state_.sum = scores_[1] + kScoreElems;
    state_.max = state_.sum + kRows * 16;
    general_ = tile.softcap > 0 || tile.alibi_slopes != nullptr;
    exponent_ = Exponent::Of(general_ ? kLog2E : tile.scale * kLog2E);
  }

  void Run() {
    ConfigureTiles();
    Begin();
    const KeyRange keys = KeysOf(0, tile_.rows);
    for (int64_t chunk = RoundDown(keys.begin, kChunk); chunk < keys.end; chunk += kChunk) {
      PackChunk(chunk, keys);
      RunChunk();
      GiveTurn();
    }
    ReleaseTiles();
    Finish();
  }

 private:
  // The keys that some of these rows see.
  KeyRange KeysOf(int64_t row, int64_t end) const {
    return tile_.band.KvRange(Position(row), Position(end - 1) + 1, tile_.kv_len);
  }
  int64_t Position(int64_t row) const { return (tile_.row_begin + row) / tile_.group; }

  void Begin() {
    const int64_t padded = RoundUp(tile_.rows, kBlockRows);
    for (int64_t row = 0; row < padded; ++row) {
      uint16_t* block = q_ + row / kBlockRows * kBlockRows * kDim * kParts;
      uint32_t& bad = bad_rows_[row / kBlockRows];
      if (row % kBlockRows == 0) bad = 0;
      bad |= uint32_t{PackQuery<kSteps, kParts>(row < tile_.rows ? Query(row) : nullptr,
                                                tile_.head_dim, row % kBlockRows, block)}
             << row % kBlockRows;
      state_.max[row] = -kInfinity;
      _mm512_store_ps(state_.sum + row * 16, _mm512_setzero_ps());
      for (int64_t i = 0; i < kDim; i += 16) {
        _mm512_store_ps(o_ + row * kDim + i, _mm512_setzero_ps());
      }
    }
  }

  const unsigned char* Query(int64_t row) const {
    const int64_t task_row = tile_.row_begin + row;
    return tile_.q + task_row / tile_.group * tile_.q_row_stride_bytes +
           task_row % tile_.group * tile_.q_head_stride_bytes;
  }

  // What the task needs of the chunk's keys, in whole steps.
  void PackChunk(int64_t chunk, const KeyRange& keys) {
    chunk_ = chunk;
    begin_ = Max(chunk, RoundDown(keys.begin, kStepKeys));
    end_ = Min(chunk + kChunk, keys.end);
    for (int64_t key = begin_; key < end_; key += 32) {
      uint16_t* to = KeysAt(key);
      const uint32_t first = PackKeys<kSteps, kParts>(tile_.k, key, end_, tile_.head_dim, to);
      to += 16 * kDim * kParts;
      const uint32_t second = PackKeys<kSteps, kParts>(tile_.k, key + 16, end_, tile_.head_dim, to);
      bad_keys_[(key - chunk_) / 32] = first | second << 16;
      const bool bad =
          PackValues<kSteps, kParts>(tile_.v, key, end_, tile_.head_dim, ValuesAt(key));
      bool& of_step = not_finite_[(key - chunk_) / kStepKeys];
      of_step = bad || (key % kStepKeys != 0 && of_step);
    }
  }

  uint16_t* KeysAt(int64_t key) const { return k_ + (key - chunk_) * kDim * kParts; }
  uint16_t* ValuesAt(int64_t key) const { return v_ + (key - chunk_) * kDim * kParts; }

  // The first step of the block that begins at `row`, or of the first after it that has any.
  bool FirstStep(int64_t row, Step& step) const {
    for (; row < tile_.rows; row += kBlockRows) {
      const int64_t rows = Min(kBlockRows, tile_.rows - row);
      const KeyRange range = KeysOf(row, row + rows);
      const int64_t key = RoundDown(Max(range.begin, begin_), kStepKeys);
      const int64_t end = Min(range.end, end_);
      if (range.empty() || Max(range.begin, begin_) >= end) continue;
      step.row = row;
      step.rows = rows;
      SetKeys(range, key, step);
      return true;
    }
    return false;
  }

  bool NextStep(const Step& before, Step& step) const {
    const KeyRange range = KeysOf(before.row, before.row + before.rows);
    const int64_t key = before.key + kStepKeys;
    if (key >= Min(range.end, end_)) return FirstStep(before.row + kBlockRows, step);
    step.row = before.row;
    step.rows = before.rows;
    SetKeys(range, key, step);
    return true;
  }

  void SetKeys(const KeyRange& range, int64_t key, Step& step) const {
    step.key = key;
    step.groups = Min(kKeyGroups, (range.end - key + 31) / 32);
    step.edge = key + kStepKeys > tile_.kv_len ||
                !tile_.band.AllVisible(Position(step.row), Position(step.row + step.rows - 1) + 1,
                                       key, key + kStepKeys);
  }

  // While the tile unit multiplies for one step, the vector units work on the step before.
  void RunChunk() {
    Step step, next;
    if (!FirstStep(0, step)) return;
    int at = 0;
    Scores(step, scores_[at], [](int64_t, int64_t) {});
    NewMaxima(step, 0, scores_[at]);
    NewMaxima(step, 16, scores_[at]);
    Rescale(step);
    while (true) {
      const bool more = NextStep(step, next);
      if (more) {
        Scores(next, scores_[at ^ 1], [&](int64_t i, int64_t count) {
          Probabilities(step, step.rows * i / count, step.rows * (i + 1) / count, scores_[at]);
        });
      } else {
        Probabilities(step, 0, step.rows, scores_[at]);
      }
      AddValues(step, [&](int64_t i, int64_t count) {
        if (more && i == 0) NewMaxima(next, 0, scores_[at ^ 1]);
        if (more && i == count / 2) NewMaxima(next, 16, scores_[at ^ 1]);
      });
      if (not_finite_[(step.key - chunk_) / kStepKeys]) AddNotFinite(step);
      if (!more) return;
      Rescale(next);
      step = next;
      at ^= 1;
    }
  }

  // `meanwhile`(i, count) is called count times in all, between products.
  template <typename Meanwhile>
  ATTND_CPU_INLINE void Scores(const Step& step, float* scores, Meanwhile meanwhile) {
    const uint16_t* q = q_ + step.row * kDim * kParts;
    const uint16_t* k = KeysAt(step.key);
    const bool both = step.rows > 16;
    const int64_t count = step.groups * kSteps;
    constexpr int64_t kPart = kSteps * kTileElems;
    for (int64_t group = 0; group < step.groups; ++group) {
      const uint16_t* keys = k + group * 2 * kPart * kParts;
      ZeroSums();
      for (int64_t i = 0; i < kSteps; ++i) {
        const uint16_t* a = q + i * 2 * kTileElems;
        const uint16_t* b = keys + i * kTileElems;
        const auto part_done = [&](int64_t quarter) __attribute__((always_inline)) {
          meanwhile((group * kSteps + i) * 4 + quarter, count * 4);
        };
        MultiplyParts<true>({a, 2 * kPart, kTileElems}, {b, kPart, kPart * kParts}, both,
                            part_done);
      }
      StoreSums(scores + group * 32, kStepKeys * 4, both);
    }
    if constexpr (kParts == 2) ScoreNotFinite(step, scores);
  }

  // The product of the parts of infinite fp16 numbers has a NaN where theirs is infinite: what such
  // a row of Q or K takes part in is computed again, as it is.
  __attribute__((noinline)) void ScoreNotFinite(const Step& step, float* scores) const {
    const uint32_t bad_rows = bad_rows_[step.row / kBlockRows];
    for (int64_t group = 0; group < step.groups; ++group) {
      const uint32_t bad_keys = bad_keys_[(step.key - chunk_) / 32 + group];
      if (bad_keys == 0 && bad_rows == 0) continue;
      const int64_t keys = Min(32, end_ - step.key - group * 32);
      for (int64_t row = 0; row < step.rows; ++row) {
        for (int64_t i = 0; i < keys; ++i) {
          if ((bad_rows >> row & 1) == 0 && (bad_keys >> i & 1) == 0) continue;
          const auto* key =
              static_cast<const unsigned char*>(tile_.k.Row(step.key + group * 32 + i));
          scores[row * kStepKeys + group * 32 + i] =
              DotF16(Query(step.row + row), key, tile_.head_dim);
        }
      }
    }
  }

  // Two tiles beside each other, `half` apart, of each part.
  struct Operand {
    const uint16_t* tiles;
    int64_t part;
    int64_t half;
  };

  // Adds the products of A, two row halves, and B; of their parts all, but that of the two low ones
  // only with kLow: scores are exact to fp32, P.V to fp16. `meanwhile`(0 .. 3) comes between.
  template <bool kLow, typename Meanwhile>
  static ATTND_CPU_INLINE void MultiplyParts(const Operand& a, const Operand& b, bool both,
                                             Meanwhile meanwhile) {
    LoadTile<kB0>(b.tiles, 64);
    LoadTile<kA0>(a.tiles, 64);
    LoadTile<kB1>(b.tiles + b.half, 64);
    MultiplyTiles<kSum00, kA0, kB0>();
    meanwhile(0);
    MultiplyTiles<kSum01, kA0, kB1>();
    meanwhile(1);
    if (both) {
      LoadTile<kA1>(a.tiles + a.half, 64);
      MultiplyTiles<kSum10, kA1, kB0>();
    }
    meanwhile(2);
    if (both) MultiplyTiles<kSum11, kA1, kB1>();
    if constexpr (kParts == 2) {
      LoadA(a, 1, both);
      MultiplyLoaded(both);
      LoadTile<kB0>(b.tiles + b.part, 64);
      LoadTile<kB1>(b.tiles + b.part + b.half, 64);
      if (kLow) MultiplyLoaded(both);
      LoadA(a, 0, both);
      MultiplyLoaded(both);
    }
    meanwhile(3);
  }

  static ATTND_CPU_INLINE void LoadA(const Operand& a, int64_t part, bool both) {
    LoadTile<kA0>(a.tiles + part * a.part, 64);
    if (both) LoadTile<kA1>(a.tiles + part * a.part + a.half, 64);
  }

  static ATTND_CPU_INLINE void MultiplyLoaded(bool both) {
    MultiplyTiles<kSum00, kA0, kB0>();
    MultiplyTiles<kSum01, kA0, kB1>();
    if (!both) return;
    MultiplyTiles<kSum10, kA1, kB0>();
    MultiplyTiles<kSum11, kA1, kB1>();
  }

  static ATTND_CPU_INLINE void StoreSums(float* to, int64_t stride_bytes, bool both) {
    StoreTile<kSum00>(to, stride_bytes);
    StoreTile<kSum01>(to + 16, stride_bytes);
    if (!both) return;
    StoreTile<kSum10>(to + 4 * stride_bytes, stride_bytes);
    StoreTile<kSum11>(to + 4 * stride_bytes + 16, stride_bytes);
  }
  static ATTND_CPU_INLINE void LoadSums(const float* from, int64_t stride_bytes, bool both) {
    LoadTile<kSum00>(from, stride_bytes);
    LoadTile<kSum01>(from + 16, stride_bytes);
    if (!both) return;
    LoadTile<kSum10>(from + 4 * stride_bytes, stride_bytes);
    LoadTile<kSum11>(from + 4 * stride_bytes + 16, stride_bytes);
  }

  // O += P.V.
  template <typename Meanwhile>
  ATTND_CPU_INLINE void AddValues(const Step& step, Meanwhile meanwhile) {
    float* o = o_ + step.row * kDim;
    const uint16_t* v = ValuesAt(step.key);
    const bool both = step.rows > 16;
    constexpr int64_t kPart = 2 * kSteps * kTileElems;
    for (int64_t column = 0; column < kSteps; ++column) {
      LoadSums(o + column * 32, kDim * 4, both);
      for (int64_t group = 0; group < step.groups; ++group) {
        const Operand p = {p_ + group * kTileElems, 2 * kKeyGroups * kTileElems,
                           kKeyGroups * kTileElems};
        const Operand values = {v + group * kPart * kParts + 2 * column * kTileElems, kPart,
                                kTileElems};
        MultiplyParts<false>(p, values, both, [](int64_t) {});
      }
      meanwhile(column, kSteps);
      StoreSums(o + column * 32, kDim * 4, both);
    }
  }

  ATTND_CPU_INLINE Place PlaceOf(const Step& step) const { return {&tile_, step.row, step.key}; }

  void NewMaxima(const Step& step, int64_t first, float* scores) {
    const Place place = PlaceOf(step);
    if (first >= step.rows) return;
    if (general_) {
      step.edge ? amx::NewMaxima<true, true>(place, exponent_, state_, first, scores, at_)
                : amx::NewMaxima<false, true>(place, exponent_, state_, first, scores, at_);
    } else {
      step.edge ? amx::NewMaxima<true, false>(place, exponent_, state_, first, scores, at_)
                : amx::NewMaxima<false, false>(place, exponent_, state_, first, scores, at_);
    }
  }

  ATTND_CPU_INLINE void Probabilities(const Step& step, int64_t begin, int64_t end,
                                      const float* scores) {
    const Place place = PlaceOf(step);
    step.edge
        ? EdgeProbabilities<kParts>(place, exponent_, state_, at_, begin, end, scores, p_)
        : amx::Probabilities<kParts, false>(place, exponent_, state_, at_, begin, end, scores, p_);
  }

  ATTND_CPU_INLINE void Rescale(const Step& step) {
    for (uint32_t grown = at_.grown; grown != 0; grown &= grown - 1) {
      const int row = __builtin_ctz(grown);
      float* o = o_ + (step.row + row) * kDim;
      const __m512 factor = _mm512_set1_ps(at_.factor[row]);
      for (int64_t i = 0; i < kDim; i += 16) {
        _mm512_store_ps(o + i, _mm512_mul_ps(_mm512_load_ps(o + i), factor));
      }
    }
  }

  // Infinite and NaN elements of V, in the rows that see them: those whose weight is not 0.
  void AddNotFinite(const Step& step) {
    const int64_t end = Min(step.key + step.groups * 32, end_);
    for (int64_t key = step.key; key < end; ++key) {
      alignas(64) float v[kDim];
      __mmask16 masks[kDim / 16];
      if (!NotFiniteOf(key, v, masks)) continue;
      const int64_t place = key - step.key;
      for (int64_t row = 0; row < step.rows; ++row) {
        const uint16_t bits =
            p_[((row / 16 * kKeyGroups + place / 32) * 16 + row % 16) * 32 + place % 32];
        if (bits == 0) continue;
        const __m512 p = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits) << 16));
        float* o = o_ + (step.row + row) * kDim;
        for (int64_t i = 0; i < kDim / 16; ++i) {
          const __m512 sum = _mm512_load_ps(o + 16 * i);
          _mm512_store_ps(o + 16 * i,
                          _mm512_mask3_fmadd_ps(p, _mm512_load_ps(v + 16 * i), sum, masks[i]));
        }
      }
    }
  }

  // Those elements of one row of V, in the order of O's columns.
  bool NotFiniteOf(int64_t key, float* v, __mmask16* masks) const {
    for (int64_t i = 0; i < kDim / 16; ++i) masks[i] = 0;
    bool any = false;
    const auto* row = static_cast<const uint16_t*>(tile_.v.Row(key));
    for (int64_t column = 0; column < tile_.head_dim; ++column) {
      const float value = LoadElement<kParts>(row + column);
      if (__builtin_isfinite(value)) continue;
      const int64_t place = ColumnPlace(column);
      v[place] = value;
      masks[place / 16] |= static_cast<__mmask16>(1u << place % 16);
      any = true;
    }
    return any;
  }

  // The rows' answers: O / sum and max + ln(sum); 0 and -inf for a row that nothing was left for.
  void Finish() {
    for (int64_t row = 0; row < tile_.rows; ++row) {
      const float max = state_.max[row];
      const float sum = _mm512_reduce_add_ps(_mm512_load_ps(state_.sum + row * 16));
      const bool none = max == -kInfinity && sum == sum;
      alignas(64) float o[kDim];
      const __m512 total = _mm512_set1_ps(sum);
      for (int64_t i = 0; i < kDim; i += 32) {
        RestoreColumns(o_ + row * kDim + i, o + i);
        for (int64_t j = i; j < i + 32; j += 16) {
          const __m512 answer = _mm512_div_ps(_mm512_load_ps(o + j), total);
          _mm512_store_ps(o + j, none ? _mm512_setzero_ps() : answer);
        }
      }
      const int64_t task_row = tile_.row_begin + row;
      const int64_t position = task_row / tile_.group, head = task_row % tile_.group;
      StoreRow<kParts>(
          o, tile_.head_dim,
          tile_.o + position * tile_.o_row_stride_bytes + head * tile_.o_head_stride_bytes);
      if (tile_.lse == nullptr) continue;
      const double unit = general_ ? 1.0 : tile_.scale;
      tile_.lse[head * tile_.lse_head_stride + position] =
          none ? -kInfinity
               : static_cast<float>(static_cast<double>(max) * unit + __builtin_log(sum));
    }
  }

  const GroupTile& tile_;
  uint16_t* q_;       // [block][part][step][row half][row][32]
  uint16_t* k_;       // [16 keys][part][step][pair of columns][key][2]
  uint16_t* v_;       // [32 keys][part][group of columns][pair of keys][column][2]
  uint16_t* p_;       // [part][row half][group of 32 keys][row][32]
  float* o_;          // [row][kDim], columns as PackValues leaves them
  float* scores_[2];  // [row][key]
  RowState state_;
  StepState at_;
  Exponent exponent_;
  bool general_;
  int64_t chunk_ = 0;  // its first key; what is packed of it: keys [begin_, end_)
  int64_t begin_ = 0;
  int64_t end_ = 0;
  bool not_finite_[kChunk / kStepKeys];    // step by step: an element of V is infinite or NaN
  uint32_t bad_keys_[kChunk / 32];         // likewise a row of K; bits, of fp16 alone
  uint32_t bad_rows_[kRows / kBlockRows];  // likewise a row of Q
};

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_BODY_H_
