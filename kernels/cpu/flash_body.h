// The CPU kernel: one query tile of flash attention with an online softmax, sums in fp32.
//
// Compiled once per instruction set, by flash_<arch>.cc, with that unit's flags; see flash_kernel.h
// for why everything has internal linkage and config.h for the sizes and the layout.
//
// Invariants.
//  1. A lane is a row. No operation mixes lanes, so a row's bits depend on its tile's place in its
//     own sequence alone.
//  2. A score is rounded once, after scaling, and stored; its maximum and its exponential both read
//     that value.
//  3. Where a row must not see a key of its tile, the score becomes -inf and the elements of V that
//     this row multiplies become 0, by selection: whatever that K or V row holds takes part in
//     nothing.
#ifndef ATTND_KERNELS_CPU_FLASH_BODY_H_
#define ATTND_KERNELS_CPU_FLASH_BODY_H_

#include "kernels/cpu/config.h"
#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/flash_rows.h"
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

constexpr float kInfinity = __builtin_inff();

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
  float* max;     // [kQTile] running maximum of the scores
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

// The part of a K/V tile that a row block works on: keys [begin, end) of the tile, which starts at
// key k0 of the sequence. begin is a multiple of kColumns.
struct BlockKeys {
  int64_t begin = 0;
  int64_t end = 0;
  bool masked = false;  // some row must not see some of these keys, or not all of the last number
  // If masked: lane by lane, the first and last key that the row sees, counted from k0.
  I32 first[kRowVectors];
  I32 last[kRowVectors];
};

ATTND_CPU_INLINE int64_t Clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

ATTND_CPU_INLINE BlockKeys KeysOfBlock(const FlashTile& tile, int64_t row_begin, int64_t row_end,
                                       int64_t k0, int64_t keys) {
  BlockKeys block;
  const KeyRange range = tile.band.KvRange(row_begin, row_end, tile.kv_len);
  block.begin = Clamp(range.begin - k0, 0, keys) / kColumns * kColumns;
  block.end = Clamp(range.end - k0, 0, keys);
  block.masked = block.end % Factors::kElems != 0 ||
                 !tile.band.AllVisible(row_begin, row_end, k0 + block.begin, k0 + block.end);
  if (!block.masked) return block;
  for (int r = 0; r < kRowVectors; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t row = row_begin + r * kLanes + lane;
      block.first[r][lane] = static_cast<int32_t>(Clamp(row + tile.band.lo - k0, 0, kKvTile));
      block.last[r][lane] = static_cast<int32_t>(Clamp(row + tile.band.hi - k0, -1, block.end - 1));
    }
  }
  return block;
}

ATTND_CPU_INLINE I32 Visible(const BlockKeys& block, int r, int64_t key) {
  const I32 keys = BroadcastInt(static_cast<int32_t>(key));
  return (block.first[r] <= keys) & (keys <= block.last[r]);
}

struct Sums {
  F32 at[kColumns][kRowVectors];
};

// sums[c][row] = sum over i in [0, count) of a[i][row] * b[i * step + c * column_step], of all
// elements of these numbers. count > 0: or else the compiler would keep zeros in memory, too.
ATTND_CPU_INLINE Sums Multiply(const float* a, const float* b, int64_t step, int64_t column_step,
                               int64_t count) {
  Sums sums{};
  do {
    Factors::Vector rows[kRowVectors];
    for (int r = 0; r < kRowVectors; ++r) rows[r] = LoadVector<Factors::Vector>(a + r * kLanes);
    for (int c = 0; c < kColumns; ++c) {
      const Factors::Vector number = Factors::BroadcastFrom(b + c * column_step);
      for (int r = 0; r < kRowVectors; ++r) {
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
ATTND_CPU_INLINE Sums MultiplyVisible(const float* a, const float* b, int64_t step,
                                      const BlockKeys& block) {
  Sums sums{};
  for (int64_t key = block.begin; key < block.end;
       key += Factors::kElems, a += kBlockRows, b += step) {
    for (int r = 0; r < kRowVectors; ++r) {
      const auto rows = LoadVector<Factors::Vector>(a + r * kLanes);
      const I32 visible = VisibleBits(block, r, key);
      for (int c = 0; c < kColumns; ++c) {
        const I32 number = BitCast<I32>(Factors::BroadcastFrom(b + c)) & visible;
        sums.at[c][r] = Factors::MultiplyAdd(rows, BitCast<Factors::Vector>(number), sums.at[c][r]);
      }
    }
  }
  return sums;
}

// scale, softcap, ALiBi, mask: a dot product becomes a score. `distance_base` holds each row's
// position in key coordinates, counted from the tile's first key.
ATTND_CPU_INLINE F32 Score(const FlashTile& tile, const BlockKeys& block, F32 dot,
                           const F32* distance_base, int r, int64_t key) {
  F32 x = dot * tile.scale;
  if (tile.softcap > 0) x = Tanh(x / tile.softcap) * tile.softcap;
  if (tile.alibi_slope != 0) {
    const F32 distance = Abs(distance_base[r] - static_cast<float>(key));
    x = Fma(distance, Broadcast(-tile.alibi_slope), x);
  }
  if (block.masked) x = Visible(block, r, key) ? x : Broadcast(-kInfinity);
  return x;
}

ATTND_CPU_INLINE void ComputeScores(const FlashTile& tile, const Scratch& s, const float* q,
                                    int64_t row_begin, int64_t k0, const BlockKeys& block) {
  F32 distance_base[kRowVectors] = {};
  if (tile.alibi_slope != 0) {
    for (int r = 0; r < kRowVectors; ++r) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t row = row_begin + r * kLanes + lane;
        distance_base[r][lane] = static_cast<float>(row + tile.kv_len - tile.q_len - k0);
      }
    }
  }
  for (int64_t key = block.begin; key < block.end; key += kColumns) {
    const Sums dots = Multiply(q, s.k + key * s.k_stride, 1, s.k_stride, NumbersOf(tile.head_dim));
    for (int c = 0; c < kColumns; ++c) {
      for (int r = 0; r < kRowVectors; ++r) {
        const F32 x = Score(tile, block, dots.at[c][r], distance_base, r, key + c);
        StoreVector(s.scores + (key + c) * kBlockRows + r * kLanes, x);
      }
    }
  }
}

// Turns a block's scores into probabilities relative to the new maximum, these into weights, and
// brings max and sum up to date. `rescale` becomes the factor for what was summed before.
ATTND_CPU_INLINE void Softmax(float* scores, float* max, float* sum, const BlockKeys& block,
                              F32* rescale) {
  for (int r = 0; r < kRowVectors; ++r) {
    float* column = scores + r * kLanes;
    const F32 old_max = LoadVector<F32>(max + r * kLanes);
    F32 new_max = old_max;
    for (int64_t key = block.begin; key < block.end; ++key) {
      new_max = Max(LoadVector<F32>(column + key * kBlockRows), new_max);
    }
    // Nothing but -inf so far: any finite number in the maximum's place gives exp(-inf) = 0.
    const F32 shift = new_max == -kInfinity ? F32{} : new_max;
    F32 tile_sum{};
    for (int64_t key = block.begin; key < block.end; key += Factors::kElems) {
      F32 p[Factors::kElems];
      for (int i = 0; i < Factors::kElems; ++i) {
        p[i] = Factors::Probability(LoadVector<F32>(column + (key + i) * kBlockRows) - shift);
        tile_sum += p[i];
      }
      StoreVector(column + key / Factors::kElems * kBlockRows, Factors::Weights(p));
    }
    rescale[r] = Exp(old_max - shift);
    StoreVector(max + r * kLanes, new_max);
    const F32 old_sum = LoadVector<F32>(sum + r * kLanes);
    StoreVector(sum + r * kLanes, Fma(old_sum, rescale[r], tile_sum));
  }
}

// O = O * rescale + P.V, the tile's own part summed from zero first.
ATTND_CPU_INLINE void AddValues(const FlashTile& tile, const Scratch& s, float* o,
                                const BlockKeys& block, const F32* rescale) {
  const float* p = s.scores + block.begin / Factors::kElems * kBlockRows;
  const float* v = s.v + block.begin / Factors::kElems * s.v_stride;
  for (int64_t column = 0; column < tile.head_dim; column += kColumns) {
    const Sums sums =
        block.masked ? MultiplyVisible(p, v + column, s.v_stride, block)
                     : Multiply(p, v + column, s.v_stride, 1, NumbersOf(block.end - block.begin));
    for (int c = 0; c < kColumns; ++c) {
      for (int r = 0; r < kRowVectors; ++r) {
        float* at = o + (column + c) * kBlockRows + r * kLanes;
        StoreVector(at, Fma(LoadVector<F32>(at), rescale[r], sums.at[c][r]));
      }
    }
  }
}

// The rows' answers: O / sum and max + ln(sum); 0 and -inf for a row that nothing was left for.
void FinishBlock(const FlashTile& tile, const Scratch& s, int64_t block_row, int64_t rows) {
  const float* o = s.o + block_row * s.v_stride;
  for (int r = 0; r < kRowVectors; ++r) {
    const F32 sum = LoadVector<F32>(s.sum + block_row + r * kLanes);
    // O is 0 where nothing was summed. One division a row: they cost more than all else of a row
    // that sees few keys.
    const F32 factor = sum == 0.0f ? F32{} : 1.0f / sum;
    StoreLanes(tile.element, o + r * kLanes, kBlockRows, factor, rows - r * kLanes, tile.head_dim,
               tile.o + (block_row + r * kLanes) * tile.o_row_stride_bytes,
               tile.o_row_stride_bytes);
  }
  if (tile.lse == nullptr) return;
  for (int64_t row = block_row; row < block_row + rows; ++row) {
    const float sum = s.sum[row];
    tile.lse[row] = sum == 0.0f
                        ? -kInfinity
                        : static_cast<float>(static_cast<double>(s.max[row]) + __builtin_log(sum));
  }
}

void LoadQueries(const FlashTile& tile, const Scratch& s, int64_t padded_rows) {
  for (int64_t row = 0; row < padded_rows; row += kLanes) {
    float* q = s.q + row / kBlockRows * kBlockRows * s.k_stride + row % kBlockRows;
    Factors::LoadQueries(tile, row, q, kBlockRows);
  }
  for (int64_t row = 0; row < padded_rows; ++row) {
    s.max[row] = -kInfinity;
    s.sum[row] = 0;
  }
  const int64_t count = padded_rows * s.v_stride;
  for (int64_t i = 0; i < count; i += kLanes) StoreVector(s.o + i, F32{});
}

// Rows of K from `keys` up to a multiple of kColumns are zeroed: they are multiplied, and the
// results not looked at.
void LoadKeysAndValues(const FlashTile& tile, const Scratch& s, int64_t k0, int64_t keys) {
  for (int64_t key = 0; key < keys; ++key) {
    Factors::LoadKey(tile, k0 + key, s.k + key * s.k_stride);
  }
  for (int64_t key = keys; key % kColumns != 0; ++key) {
    for (int64_t i = 0; i < s.k_stride; ++i) s.k[key * s.k_stride + i] = 0;
  }
  for (int64_t key = 0; key < keys; key += Factors::kElems) {
    Factors::LoadValues(tile, k0 + key, keys - key, s.v + key / Factors::kElems * s.v_stride);
  }
}

void ProcessBlock(const FlashTile& tile, const Scratch& s, int64_t block_row, int64_t rows,
                  int64_t k0, int64_t keys) {
  const int64_t row_begin = tile.q_begin + block_row;
  const BlockKeys block = KeysOfBlock(tile, row_begin, row_begin + rows, k0, keys);
  if (block.begin >= block.end) return;
  F32 rescale[kRowVectors];
  ComputeScores(tile, s, s.q + block_row * s.k_stride, row_begin, k0, block);
  Softmax(s.scores, s.max + block_row, s.sum + block_row, block, rescale);
  AddValues(tile, s, s.o + block_row * s.v_stride, block, rescale);
}

void RunTile(const FlashTile& tile, void* memory) {
  const Scratch s = MakeScratch(memory, tile.head_dim);
  const int64_t padded_rows = (tile.rows + kBlockRows - 1) / kBlockRows * kBlockRows;
  LoadQueries(tile, s, padded_rows);
  const KeyRange range = tile.band.KvRange(tile.q_begin, tile.q_begin + tile.rows, tile.kv_len);
  for (int64_t k0 = range.begin; k0 < range.end; k0 += kKvTile) {
    const int64_t keys = Clamp(range.end - k0, 0, kKvTile);
    LoadKeysAndValues(tile, s, k0, keys);
    for (int64_t row = 0; row < tile.rows; row += kBlockRows) {
      ProcessBlock(tile, s, row, Clamp(tile.rows - row, 0, kBlockRows), k0, keys);
    }
  }
  for (int64_t row = 0; row < tile.rows; row += kBlockRows) {
    FinishBlock(tile, s, row, Clamp(tile.rows - row, 0, kBlockRows));
  }
}

int64_t ScratchBytes(int64_t head_dim) {
  return ScratchElems(KvRowElems(NumbersOf(head_dim)), KvRowElems(head_dim)) *
         static_cast<int64_t>(sizeof(float));
}

void ExpArray(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) StoreVector(out + i, Exp(LoadVector<F32>(in + i)));
}

void TanhArray(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) StoreVector(out + i, Tanh(LoadVector<F32>(in + i)));
}

constexpr FlashKernel MakeFlashKernel(const char* arch) {
  return {arch, kQTile, kKvTile, &RunTile, &ScratchBytes, &ExpArray, &TanhArray};
}

}  // namespace
}  // namespace attnd::kernels::cpu
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_FLASH_BODY_H_
