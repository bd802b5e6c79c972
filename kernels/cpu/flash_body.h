// The CPU kernel: one query tile of flash attention with an online softmax, sums in fp32.
//
// Compiled once per instruction set, by flash_<arch>.cc, with that unit's flags; see flash_kernel.h
// for why everything has internal linkage and config.h for the sizes and the layout.
//
// Invariants.
//  1. A lane is a row. No operation mixes lanes, so a row's bits depend on its tile's place in its
//     own sequence alone.
//  2. A stored score is a dot product, or that after scale, softcap and ALiBi if there are such.
//     Its maximum and its exponential both read that value; what is scaled is the difference to the
//     maximum, so that scores of any size cancel exactly.
//  3. Where a row must not see a key of its tile, the score becomes -inf and the elements of V that
//     this row multiplies become 0, by selection: whatever that K or V row holds takes part in
//     nothing.
#ifndef ATTND_KERNELS_CPU_FLASH_BODY_H_
#define ATTND_KERNELS_CPU_FLASH_BODY_H_

#include "kernels/cpu/config.h"
#include "kernels/cpu/few_keys.h"
#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/flash_rows.h"
#include "kernels/cpu/flash_scores.h"
#include "kernels/cpu/vector.h"
#if defined(__AVX512BF16__)
#include "kernels/cpu/factors_bf16.h"
#else
#include "kernels/cpu/factors_f32.h"
#endif

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu {
namespace {

constexpr int kRowVectors = MicroTile<kVectorBytes>::kRowVectors;
constexpr int kColumns = MicroTile<kVectorBytes>::kColumns;
constexpr int64_t kQTile = MicroTile<kVectorBytes>::kQTile;
constexpr int64_t kBlockRows = kRowVectors * kLanes;
constexpr int64_t kBlocks = kQTile / kBlockRows;
static_assert(kQTile % kBlockRows == 0 && kKvTile % kColumns == 0 && kLanes % kColumns == 0);
static_assert(kColumns % Factors::kElems == 0);

// Numbers of scratch that hold so many elements: see factors_f32.h.
ATTND_CPU_INLINE int64_t NumbersOf(int64_t elems) {
  return (elems + Factors::kElems - 1) / Factors::kElems;
}

// One thread's memory. Q and O are kept by blocks of kBlockRows rows, transposed:
// [block][number or column][row].
struct Scratch {
  float* q;
  float* o;
  float* k;       // [kKvTile][k_stride]
  float* v;       // [kKvTile / kElems][v_stride]
  float* scores;  // [kKvTile][kBlockRows], later weights, [kKvTile / kElems][kBlockRows]
  float* max;     // [kQTile] running maximum of the stored scores
  float* sum;     // [kQTile] running sum of exp(score - max)
  int64_t k_stride;
  int64_t v_stride;
};

ATTND_CPU_INLINE int64_t ScratchElems(int64_t k_stride, int64_t v_stride) {
  return (kQTile + kKvTile) * k_stride + (kQTile + kKvTile / Factors::kElems) * v_stride +
         kKvTile * kBlockRows + 2 * kQTile;
}

ATTND_CPU_INLINE Scratch MakeScratch(void* memory, int64_t head_dim) {
  Scratch s;
  s.k_stride = KvRowElems(NumbersOf(head_dim));
  s.v_stride = KvRowElems(head_dim);
  s.q = static_cast<float*>(memory);
  s.o = s.q + kQTile * s.k_stride;
  s.k = s.o + kQTile * s.v_stride;
  s.v = s.k + kKvTile * s.k_stride;
  s.scores = s.v + kKvTile / Factors::kElems * s.v_stride;
  s.max = s.scores + kKvTile * kBlockRows;
  s.sum = s.max + kQTile;
  return s;
}

// The K/V tile that row blocks multiply: in scratch, or in the caller's tensors.
struct KvTile {
  const float* k;  // [keys][k_stride]
  const float* v;  // [keys / kElems][v_stride]
  int64_t k_stride;
  int64_t v_stride;
};

// The part of a K/V tile that a row block works on: keys [begin, end) of the tile, which starts at
// key k0 of the sequence. begin is a multiple of kColumns.
struct BlockKeys {
  int64_t begin;
  int64_t end;
  bool masked;  // some row must not see some of these keys, or not all of the last number
  // If masked: lane by lane, the first and last key that the row sees, counted from k0.
  I32 first[kRowVectors];
  I32 last[kRowVectors];
};

ATTND_CPU_INLINE int64_t Clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// Rows [row, row + rows) of a tile, in whole vectors but for the tile's last.
struct RowBlock {
  int64_t row;
  int64_t rows;
  int64_t slot;  // its first row's place in scratch, a multiple of kBlockRows
  bool is_new;   // its O holds nothing yet
};

// Of a tile of so many, > 0: blocks as equal as vectors allow, as one of few vectors computes at a
// lower rate.
ATTND_CPU_INLINE int64_t RowsOfBlock(int64_t rows) {
  const int64_t least_rows = (rows + kBlockRows - 1) / kBlockRows * kLanes;
  return (rows + least_rows - 1) / least_rows * kLanes;
}

ATTND_CPU_INLINE void FindKeysOfBlock(const FlashTile& tile, int64_t row_begin, int64_t row_end,
                                      int64_t k0, int64_t keys, BlockKeys& block) {
  const KeyRange range = tile.band.KvRange(row_begin, row_end, tile.kv_len);
  block.begin = Clamp(range.begin - k0, 0, keys) / kColumns * kColumns;
  block.end = Clamp(range.end - k0, 0, keys);
  block.masked = block.end % Factors::kElems != 0 ||
                 !tile.band.AllVisible(row_begin, row_end, k0 + block.begin, k0 + block.end);
  if (!block.masked) return;
  for (int r = 0; r < kRowVectors; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t row = row_begin + r * kLanes + lane;
      block.first[r][lane] = static_cast<int32_t>(Clamp(row + tile.band.lo - k0, 0, kKvTile));
      block.last[r][lane] = static_cast<int32_t>(Clamp(row + tile.band.hi - k0, -1, block.end - 1));
    }
  }
}

ATTND_CPU_INLINE I32 Visible(const BlockKeys& block, int r, int64_t key) {
  const I32 keys = BroadcastInt(static_cast<int32_t>(key));
  return (block.first[r] <= keys) & (keys <= block.last[r]);
}

// Sums of kVectors vectors of rows by kColumns keys or columns. Every loop over them is unrolled,
// or else compilers would keep them in memory.
template <int kVectors>
struct Sums {
  F32 at[kColumns][kVectors];
};

// sums[c][row] = sum over i in [0, count) of a[i][row] * b[i * step + c * column_step], of all
// elements of these numbers. count > 0.
template <int kVectors>
ATTND_CPU_INLINE Sums<kVectors> Multiply(const float* a, const float* b, int64_t step,
                                         int64_t column_step, int64_t count) {
  Sums<kVectors> sums{};
  do {
    Factors::Vector rows[kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < kVectors; ++r) rows[r] = LoadVector<Factors::Vector>(a + r * kLanes);
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      const Factors::Vector number = Factors::BroadcastFrom(b + c * column_step);
#pragma GCC unroll 4
      for (int r = 0; r < kVectors; ++r) {
        sums.at[c][r] = Factors::MultiplyAdd(rows[r], number, sums.at[c][r]);
      }
    }
    a += kBlockRows;
    b += step;
  } while (--count > 0);
  return sums;
}

// The bits of the number at `key` whose keys a row sees.
ATTND_CPU_INLINE I32 VisibleBits(const BlockKeys& block, int r, int64_t key) {
  I32 visible[Factors::kElems];
  for (int i = 0; i < Factors::kElems; ++i) visible[i] = Visible(block, r, key + i);
  return Factors::Mask(visible);
}

// As Multiply, for P.V: i counts keys from block.begin, and a row multiplies 0 in the place of the
// keys hidden from it.
template <int kVectors>
ATTND_CPU_INLINE Sums<kVectors> MultiplyVisible(const float* a, const float* b, int64_t step,
                                                const BlockKeys& block) {
  Sums<kVectors> sums{};
  int64_t key = block.begin;
  do {
    Factors::Vector rows[kVectors];
    I32 visible[kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < kVectors; ++r) {
      rows[r] = LoadVector<Factors::Vector>(a + r * kLanes);
      visible[r] = VisibleBits(block, r, key);
    }
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      const Factors::Vector number = Factors::BroadcastFrom(b + c);
#pragma GCC unroll 4
      for (int r = 0; r < kVectors; ++r) {
        sums.at[c][r] = Factors::MultiplyAddVisible(rows[r], number, visible[r], sums.at[c][r]);
      }
    }
    key += Factors::kElems;
    a += kBlockRows;
    b += step;
  } while (key < block.end);
  return sums;
}

// Softcap, ALiBi and mask on the dot products of one vector of rows, up to the last whole number.
void AdjustScores(const FlashTile& tile, float* scores, int64_t row_begin, int64_t k0,
                  const BlockKeys& block, int r) {
  const F32 position = Positions(tile, row_begin + r * kLanes, k0);
  const bool adjusts = AdjustsScores(tile);
  const int64_t end = NumbersOf(block.end) * Factors::kElems;
  for (int64_t key = block.begin; key < end; ++key) {
    float* at = scores + key * kBlockRows + r * kLanes;
    F32 x = LoadVector<F32>(at);
    if (adjusts) x = Score(tile, x, position, key);
    if (block.masked) x = Visible(block, r, key) ? x : Broadcast(-kInfinity);
    StoreVector(at, x);
  }
}

// Asks for kColumns rows of K and of V, from `key` of the sequence on, into the L2.
ATTND_CPU_INLINE void PrefetchKeys(const FlashTile& tile, int64_t key) {
  const int64_t bytes = RowBytes(tile.element, tile.head_dim);
  for (int64_t end = Clamp(key + kColumns, 0, tile.kv_len); key < end; ++key) {
    const auto* k = static_cast<const unsigned char*>(tile.k.Row(key));
    const auto* v = static_cast<const unsigned char*>(tile.v.Row(key));
    for (int64_t i = 0; i < bytes; i += kCacheLineElems * kNumberBytes) {
      __builtin_prefetch(k + i, 0, 2);
      __builtin_prefetch(v + i, 0, 2);
    }
  }
}

template <int kVectors>
ATTND_CPU_INLINE void ComputeScores(const FlashTile& tile, const KvTile& kv, const float* q,
                                    int64_t row_begin, int64_t k0, const BlockKeys& block,
                                    float* scores) {
  for (int64_t key = block.begin; key < block.end; key += kColumns) {
    // The first block has the next tile come while it computes.
    if (row_begin == tile.q_begin) PrefetchKeys(tile, k0 + kKvTile + key);
    const Sums<kVectors> dots =
        Multiply<kVectors>(q, kv.k + key * kv.k_stride, 1, kv.k_stride, NumbersOf(tile.head_dim));
    float* at = scores + key * kBlockRows;
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 4
      for (int r = 0; r < kVectors; ++r) {
        StoreVector(at + c * kBlockRows + r * kLanes, dots.at[c][r]);
      }
    }
  }
  if (!block.masked && !AdjustsScores(tile)) return;
  for (int r = 0; r < kVectors; ++r) AdjustScores(tile, scores, row_begin, k0, block, r);
}

// Turns a block's scores, times `unit`, into probabilities relative to the new maximum, these into
// weights, and brings max and sum up to date. `rescale` becomes the factor for what was summed
// before.
template <int kVectors>
ATTND_CPU_INLINE void Softmax(float* scores, float* max, float* sum, const BlockKeys& block,
                              float unit, F32* rescale) {
  const F32 factor = Broadcast(unit * kLog2E);
  const F32 least = Broadcast(Factors::kLeastWeight) / factor;
  F32 tile_max[kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kVectors; ++r) tile_max[r] = Broadcast(-kInfinity);
  for (int64_t key = block.begin; key < block.end; ++key) {
#pragma GCC unroll 4
    for (int r = 0; r < kVectors; ++r) {
      tile_max[r] = Max(LoadVector<F32>(scores + key * kBlockRows + r * kLanes), tile_max[r]);
    }
  }
  F32 shift[kVectors];
  F32 tile_sum[kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kVectors; ++r) {
    const F32 old_max = LoadVector<F32>(max + r * kLanes);
    const F32 new_max = Max(tile_max[r], old_max);
    // Nothing but -inf so far: any finite number in the maximum's place gives exp(-inf) = 0.
    shift[r] = new_max == -kInfinity ? F32{} : new_max;
    rescale[r] = Exp2(old_max - shift[r], factor, Broadcast(kLeastExponent) / factor);
    tile_sum[r] = F32{};
    StoreVector(max + r * kLanes, new_max);
  }
  for (int64_t key = block.begin; key < block.end; key += Factors::kElems) {
#pragma GCC unroll 4
    for (int r = 0; r < kVectors; ++r) {
      float* column = scores + r * kLanes;
      F32 p[Factors::kElems];
      for (int i = 0; i < Factors::kElems; ++i) {
        const F32 score = LoadVector<F32>(column + (key + i) * kBlockRows);
        p[i] = Factors::Probability(score - shift[r], factor, least);
        tile_sum[r] += p[i];
      }
      StoreVector(column + key / Factors::kElems * kBlockRows, Factors::Weights(p));
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kVectors; ++r) {
    const F32 old_sum = LoadVector<F32>(sum + r * kLanes);
    StoreVector(sum + r * kLanes, Fma(old_sum, rescale[r], tile_sum[r]));
  }
}

// O = O * rescale + P.V, the tile's own part summed from zero first; O = P.V if it is new.
template <int kVectors>
ATTND_CPU_INLINE void AddValues(const FlashTile& tile, const KvTile& kv, const float* weights,
                                const BlockKeys& block, const F32* rescale, bool is_new, float* o) {
  const float* p = weights + block.begin / Factors::kElems * kBlockRows;
  const float* v = kv.v + block.begin / Factors::kElems * kv.v_stride;
  for (int64_t column = 0; column < tile.head_dim; column += kColumns) {
    const Sums<kVectors> sums =
        block.masked
            ? MultiplyVisible<kVectors>(p, v + column, kv.v_stride, block)
            : Multiply<kVectors>(p, v + column, kv.v_stride, 1, NumbersOf(block.end - block.begin));
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 4
      for (int r = 0; r < kVectors; ++r) {
        float* at = o + (column + c) * kBlockRows + r * kLanes;
        const F32 sum = sums.at[c][r];
        StoreVector(at, is_new ? sum : Fma(LoadVector<F32>(at), rescale[r], sum));
      }
    }
  }
}

// The rows' answers: O / sum and max + ln(sum); 0 and -inf for a row that nothing was left for.
void FinishBlock(const FlashTile& tile, const Scratch& s, const RowBlock& block) {
  float* o = s.o + block.slot * s.v_stride;
  const int64_t unset = block.is_new ? kBlockRows * tile.head_dim : 0;
  for (int64_t i = 0; i < unset; i += kLanes) StoreVector(o + i, F32{});
  for (int r = 0; r * kLanes < block.rows; ++r) {
    const F32 sum = LoadVector<F32>(s.sum + block.slot + r * kLanes);
    // O is 0 where nothing was summed. One division a row: they cost more than all else of a row
    // that sees few keys.
    const F32 factor = sum == 0.0f ? F32{} : 1.0f / sum;
    StoreLanes(tile.element, o + r * kLanes, kBlockRows, factor, tile.rows - block.row - r * kLanes,
               tile.head_dim, tile.o + (block.row + r * kLanes) * tile.o_row_stride_bytes,
               tile.o_row_stride_bytes);
  }
  if (tile.lse == nullptr) return;
  for (int64_t row = 0; row < block.rows; ++row) {
    tile.lse[block.row + row] = Lse(tile, s.max[block.slot + row], s.sum[block.slot + row]);
  }
}

void LoadQueries(const FlashTile& tile, const Scratch& s, const RowBlock& block) {
  for (int64_t row = 0; row < block.rows; row += kLanes) {
    Factors::LoadQueries(tile, block.row + row, s.q + block.slot * s.k_stride + row, kBlockRows);
  }
  for (int64_t row = block.slot; row < block.slot + kBlockRows; ++row) {
    s.max[row] = -kInfinity;
    s.sum[row] = 0;
  }
}

// Keys [k0, k0 + keys) as the products take them. In a copy, rows of K from `keys` up to a multiple
// of kColumns are zeroed: they are multiplied, and the results not looked at.
KvTile LoadKeysAndValues(const FlashTile& tile, const Scratch& s, int64_t k0, int64_t keys) {
  if (keys % kColumns == 0 && tile.head_dim % kColumns == 0 && Factors::InPlace(tile)) {
    return {static_cast<const float*>(tile.k.Row(k0)), static_cast<const float*>(tile.v.Row(k0)),
            tile.k.row_stride_bytes / kNumberBytes, tile.v.row_stride_bytes / kNumberBytes};
  }
  for (int64_t key = 0; key < keys; ++key) {
    Factors::LoadKey(tile, k0 + key, s.k + key * s.k_stride);
  }
  for (int64_t key = keys; key % kColumns != 0; ++key) {
    for (int64_t i = 0; i < s.k_stride; ++i) s.k[key * s.k_stride + i] = 0;
  }
  for (int64_t key = 0; key < keys; key += Factors::kElems) {
    Factors::LoadValues(tile, k0 + key, keys - key, s.v + key / Factors::kElems * s.v_stride);
  }
  return {s.k, s.v, s.k_stride, s.v_stride};
}

// One row block of kVectors vectors, of which the last holds a row, against one K/V tile.
template <int kVectors>
void ProcessBlock(const FlashTile& tile, const Scratch& s, const KvTile& kv, RowBlock& rows,
                  int64_t k0, int64_t keys) {
  if constexpr (kVectors > 1) {
    if (rows.rows <= (kVectors - 1) * kLanes) {
      return ProcessBlock<kVectors - 1>(tile, s, kv, rows, k0, keys);
    }
  }
  const int64_t row_begin = tile.q_begin + rows.row;
  BlockKeys block;
  FindKeysOfBlock(tile, row_begin, row_begin + rows.rows, k0, keys, block);
  if (block.begin >= block.end) return;
  F32 rescale[kVectors];
  ComputeScores<kVectors>(tile, kv, s.q + rows.slot * s.k_stride, row_begin, k0, block, s.scores);
  Softmax<kVectors>(s.scores, s.max + rows.slot, s.sum + rows.slot, block, ScoreUnit(tile),
                    rescale);
  AddValues<kVectors>(tile, kv, s.scores, block, rescale, rows.is_new,
                      s.o + rows.slot * s.v_stride);
  rows.is_new = false;
}

// All blocks take turns at each K/V tile, which may have been converted for them. Where there is
// one K/V tile, a block is finished before the next begins, in the same place: the L1 holds it.
void RunTile(const FlashTile& tile, void* memory) {
  if (tile.sees_few_keys) return RunFewKeys(tile, static_cast<float*>(memory));
  const Scratch s = MakeScratch(memory, tile.head_dim);
  const KeyRange range = tile.band.KvRange(tile.q_begin, tile.q_begin + tile.rows, tile.kv_len);
  const bool is_short = range.size() <= kKvTile;
  const int64_t block_rows = RowsOfBlock(tile.rows);
  KvTile kv;
  if (is_short) kv = LoadKeysAndValues(tile, s, range.begin, range.size());
  RowBlock blocks[kBlocks];
  int64_t count = 0;
  for (int64_t row = 0; row < tile.rows; row += block_rows, ++count) {
    RowBlock& block = blocks[count];
    block = {row, Clamp(tile.rows - row, 0, block_rows), is_short ? 0 : count * kBlockRows, true};
    LoadQueries(tile, s, block);
    if (!is_short) continue;
    ProcessBlock<kRowVectors>(tile, s, kv, block, range.begin, range.size());
    FinishBlock(tile, s, block);
  }
  if (is_short) return;
  for (int64_t k0 = range.begin; k0 < range.end; k0 += kKvTile) {
    const int64_t keys = Clamp(range.end - k0, 0, kKvTile);
    kv = LoadKeysAndValues(tile, s, k0, keys);
    for (int64_t i = 0; i < count; ++i) {
      ProcessBlock<kRowVectors>(tile, s, kv, blocks[i], k0, keys);
    }
  }
  for (int64_t i = 0; i < count; ++i) FinishBlock(tile, s, blocks[i]);
}

int64_t ScratchBytes(int64_t head_dim) {
  return ScratchElems(KvRowElems(NumbersOf(head_dim)), KvRowElems(head_dim)) * kNumberBytes;
}

void ExpArray(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) StoreVector(out + i, Exp(LoadVector<F32>(in + i)));
}

void Exp2Array(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    StoreVector(out + i, Exp2(LoadVector<F32>(in + i), Broadcast(1.0f), Broadcast(kLeastExponent)));
  }
}

void TanhArray(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) StoreVector(out + i, Tanh(LoadVector<F32>(in + i)));
}

constexpr FlashKernel MakeFlashKernel(const char* arch) {
  return {arch, kQTile, kKvTile, &RunTile, &ScratchBytes, &ExpArray, &Exp2Array, &TanhArray};
}

}  // namespace
}  // namespace attnd::kernels::cpu
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_FLASH_BODY_H_
