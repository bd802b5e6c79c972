// The decode kernel: one query position of all heads that read one KV head. Compiled once per
// instruction set, by decode_<arch>.cc; everything has internal linkage, see flash_kernel.h.
//
// Vectors run along head_dim, so that K and V are read as they lie, once for every kRows heads, and
// converted on the way. All heads see the same keys: hidden ones are never read.
#ifndef ATTND_KERNELS_CPU_DECODE_BODY_H_
#define ATTND_KERNELS_CPU_DECODE_BODY_H_

#include <utility>

#include "kernels/cpu/decode_kernel.h"
#include "kernels/cpu/flash_rows.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu {
namespace {

constexpr float kInfinity = __builtin_inff();

// Keys whose scores are kept: P.V of them is summed from zero before it is added to O.
constexpr int64_t kDecodeKeys = 64;
// A block of scores has kLanes sums, as many as can be added up across lanes together: kRows heads
// by kKeys keys. AVX-512: 16 sums, 4 K and 1 Q of 32 registers.
constexpr int kKeys = 4;
constexpr int kRows = kLanes / kKeys;
static_assert(kDecodeKeys % kLanes == 0 && kLanes % kKeys == 0);
// Of P.V: kRows heads by this many vectors of columns.
constexpr int kColumnVectors = 4;
// Rows in scratch are padded to this.
constexpr int64_t kColumnElems = kColumnVectors * kLanes;

ATTND_CPU_INLINE int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }
ATTND_CPU_INLINE int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// One thread's memory, for all heads of the group, a whole number of kRows.
struct DecodeScratch {
  float* q;       // [row][padded_dim]
  float* scores;  // [row][kDecodeKeys], then probabilities
  float* factor;  // [row], for what was summed before
  int64_t rows;
  int64_t padded_dim;
};

// [row] maximum, [row] sum, [row][padded_dim] O; rows and padded_dim as in DecodeScratch.
struct Partial {
  float* max;
  float* sum;
  float* o;
};

ATTND_CPU_INLINE int64_t PaddedRows(int64_t group) { return RoundUp(group, kRows); }
ATTND_CPU_INLINE int64_t PaddedDim(int64_t head_dim) { return RoundUp(head_dim, kColumnElems); }

ATTND_CPU_INLINE int64_t PartialElems(int64_t group, int64_t head_dim) {
  return RoundUp(PaddedRows(group) * (2 + PaddedDim(head_dim)), 16);
}

ATTND_CPU_INLINE Partial MakePartial(float* memory, int64_t rows) {
  return {memory, memory + rows, memory + 2 * rows};
}

ATTND_CPU_INLINE DecodeScratch MakeDecodeScratch(void* memory, const GroupTile& tile) {
  DecodeScratch s;
  s.rows = PaddedRows(tile.group);
  s.padded_dim = PaddedDim(tile.head_dim);
  s.q = static_cast<float*>(memory);
  s.scores = s.q + s.rows * s.padded_dim;
  s.factor = s.scores + s.rows * kDecodeKeys;
  return s;
}

// Elements [i, i + kLanes) of a row of `count`; zeros past its end. whole: `count` is a multiple of
// kColumnElems, here and below, and nothing is asked.
template <Element element, bool whole>
ATTND_CPU_INLINE F32 LoadElems(const unsigned char* row, int64_t i, int64_t count) {
  using S = Stored<element>;
  if (whole || i + kLanes <= count) {
    return S::Load(LoadVector<typename S::Vector>(row + i * S::kBytes));
  }
  typename S::Vector bits{};
  if (i < count) __builtin_memcpy(&bits, row + i * S::kBytes, (count - i) * S::kBytes);
  return S::Load(bits);
}

// Two vectors of a row.
struct Pair {
  F32 half[2];
};

// Elements [i, i + 2 * kLanes) of a row of `count`, in the order in which they are cheapest to
// convert: of bf16 the even ones, then the odd ones, which takes an instruction each; of others one
// half after the other. Zeros past the row's end. Q, K, V and O all have this order here.
template <Element element, bool whole>
ATTND_CPU_INLINE Pair LoadPair(const unsigned char* row, int64_t i, int64_t count) {
  if constexpr (element == Element::kBF16) {
    U32 words{};
    const unsigned char* from = row + 2 * i;
    if (whole || i + 2 * kLanes <= count) {
      words = LoadVector<U32>(from);
    } else if (i < count) {
      __builtin_memcpy(&words, from, 2 * (count - i));
    }
    return {{FromBits(words << 16), FromBits(words & 0xffff0000u)}};
  } else {
    return {{LoadElems<element, whole>(row, i, count),
             LoadElems<element, whole>(row, i + kLanes, count)}};
  }
}

template <Element element>
ATTND_CPU_INLINE void StoreElems(F32 value, int64_t i, int64_t count, unsigned char* row) {
  using S = Stored<element>;
  const typename S::Vector bits = S::Store(value);
  const int64_t elems = Least(count - i, kLanes);
  if (elems == kLanes) return StoreVector(row + i * S::kBytes, bits);
  if (elems > 0) __builtin_memcpy(row + i * S::kBytes, &bits, elems * S::kBytes);
}

// LoadPair's way back; what is past the row's end is not written.
template <Element element>
ATTND_CPU_INLINE void StorePair(const Pair& pair, int64_t i, int64_t count, unsigned char* row) {
  if constexpr (element == Element::kBF16) {
    const U32 words = __builtin_convertvector(ToBF16(pair.half[0]), U32) |
                      (__builtin_convertvector(ToBF16(pair.half[1]), U32) << 16);
    __builtin_memcpy(row + 2 * i, &words, 2 * Least(count - i, 2 * kLanes));
  } else {
    StoreElems<element>(pair.half[0], i, count, row);
    StoreElems<element>(pair.half[1], i + kLanes, count, row);
  }
}

// Asks for two vectors of a row, elements i and following. Into the L2, as the L1 has fewer places
// for what it waits for: PREFETCHT1 gets 15 GB/s to a core of a Sapphire Rapids, PREFETCHT0 13.
template <Element element>
ATTND_CPU_INLINE void PrefetchPair(const void* row, int64_t i) {
  constexpr int64_t kBytes = Stored<element>::kBytes, kLineBytes = 64;
  const auto* from = static_cast<const unsigned char*>(row) + i * kBytes;
  for (int64_t offset = 0; offset < 2 * kLanes * kBytes; offset += kLineBytes) {
    __builtin_prefetch(from + offset, 0, 2);
  }
}

// Dot products of all heads with keys [key, key + count), count <= kDecodeKeys. Asks for V of these
// keys meanwhile, in step with K, so that the memory always has something to do.
template <Element element, bool whole>
ATTND_CPU_INLINE void DotProducts(const GroupTile& tile, const DecodeScratch& s, int64_t key,
                                  int64_t count) {
  for (int64_t i = 0; i < count; i += kKeys) {
    const unsigned char* k[kKeys];
    const void* v[kKeys];
    for (int j = 0; j < kKeys; ++j) {
      // The last key in the place of those past the end, whose scores are not looked at.
      const int64_t one = key + Least(i + j, count - 1);
      k[j] = static_cast<const unsigned char*>(tile.k.Row(one));
      v[j] = tile.v.Row(one);
    }
    for (int64_t row = 0; row < s.rows; row += kRows) {
      const float* q = s.q + row * s.padded_dim;
      F32 sums[kLanes] = {};
      for (int64_t column = 0; column < tile.head_dim; column += 2 * kLanes) {
        Pair elems[kKeys];
        for (int j = 0; j < kKeys; ++j) {
          elems[j] = LoadPair<element, whole>(k[j], column, tile.head_dim);
          if (row == 0) PrefetchPair<element>(v[j], column);
        }
        for (int h = 0; h < 2; ++h) {
          for (int r = 0; r < kRows; ++r) {
            const F32 queries = LoadVector<F32>(q + r * s.padded_dim + column + h * kLanes);
            for (int j = 0; j < kKeys; ++j) {
              sums[r * kKeys + j] = Fma(queries, elems[j].half[h], sums[r * kKeys + j]);
            }
          }
        }
      }
      float dots[kLanes];
      StoreVector(dots, SumOfEach(sums));
      for (int r = 0; r < kRows; ++r) {
        __builtin_memcpy(s.scores + (row + r) * kDecodeKeys + i, dots + r * kKeys,
                         kKeys * sizeof(float));
      }
    }
  }
}

template <int... lane>
ATTND_CPU_INLINE F32 LaneNumbers(std::integer_sequence<int, lane...>) {
  return F32{static_cast<float>(lane)...};
}
// first, first + 1 ...
ATTND_CPU_INLINE F32 LaneNumbers(int64_t first) {
  return LaneNumbers(std::make_integer_sequence<int, kLanes>()) + static_cast<float>(first);
}

// Scores of one head, from dot products; -inf from `count` on. Their maximum, in every lane.
ATTND_CPU_INLINE F32 Scores(const GroupTile& tile, float slope, int64_t key, int64_t count,
                            float* scores) {
  F32 max = Broadcast(-kInfinity);
  for (int64_t i = 0; i < kDecodeKeys; i += kLanes) {
    F32 x = LoadVector<F32>(scores + i) * tile.scale;
    if (tile.softcap > 0) x = Tanh(x / tile.softcap) * tile.softcap;
    if (slope != 0) {
      const auto distance = static_cast<float>(tile.kv_len - tile.q_len - key - i);
      x = Fma(Abs(distance - LaneNumbers(0)), Broadcast(-slope), x);
    }
    x = LaneNumbers(i) < static_cast<float>(count) ? x : Broadcast(-kInfinity);
    StoreVector(scores + i, x);
    max = Max(x, max);
  }
  return OverLanes<Greatest>(max);
}

// Turns dot products into probabilities relative to the new maximum.
ATTND_CPU_INLINE void DecodeSoftmax(const GroupTile& tile, const DecodeScratch& s,
                                    const Partial& partial, int64_t key, int64_t count) {
  for (int64_t row = 0; row < tile.group; ++row) {
    float* scores = s.scores + row * kDecodeKeys;
    const float slope = tile.alibi_slopes != nullptr ? tile.alibi_slopes[row] : 0.0f;
    const F32 old_max = Broadcast(partial.max[row]);
    const F32 new_max = Max(Scores(tile, slope, key, count, scores), old_max);
    // Nothing but -inf so far: any finite number in the maximum's place gives exp(-inf) = 0.
    const F32 shift = new_max == -kInfinity ? F32{} : new_max;
    F32 sums{};
    for (int64_t i = 0; i < kDecodeKeys; i += kLanes) {
      const F32 p = Exp(LoadVector<F32>(scores + i) - shift);
      StoreVector(scores + i, p);
      sums += p;
    }
    const F32 factor = Exp(old_max - shift);
    s.factor[row] = factor[0];
    partial.max[row] = new_max[0];
    partial.sum[row] = Fma(Broadcast(partial.sum[row]), factor, OverLanes<Adding>(sums))[0];
  }
}

// O = O * factor + P.V, the tile's own part summed from zero first. Asks for K of the next tile's
// keys, before `end`, meanwhile.
template <Element element, bool whole>
ATTND_CPU_INLINE void AddDecodeValues(const GroupTile& tile, const DecodeScratch& s,
                                      const Partial& partial, int64_t key, int64_t count,
                                      int64_t end) {
  for (int64_t row = 0; row < s.rows; row += kRows) {
    const float* p = s.scores + row * kDecodeKeys;
    for (int64_t column = 0; column < tile.head_dim; column += kColumnElems) {
      F32 sums[kRows][kColumnVectors] = {};
      for (int64_t i = 0; i < count; ++i) {
        const auto* v = static_cast<const unsigned char*>(tile.v.Row(key + i));
        const void* k = tile.k.Row(Least(key + i + kDecodeKeys, end - 1));
        Pair elems[kColumnVectors / 2];
        for (int c = 0; c < kColumnVectors / 2; ++c) {
          const int64_t from = column + 2 * c * kLanes;
          elems[c] = LoadPair<element, whole>(v, from, tile.head_dim);
          if (row == 0) PrefetchPair<element>(k, from);
        }
        for (int r = 0; r < kRows; ++r) {
          const F32 weight = Broadcast(p[r * kDecodeKeys + i]);
          for (int c = 0; c < kColumnVectors; ++c) {
            sums[r][c] = Fma(weight, elems[c / 2].half[c % 2], sums[r][c]);
          }
        }
      }
      for (int r = 0; r < kRows; ++r) {
        float* o = partial.o + (row + r) * s.padded_dim + column;
        for (int c = 0; c < kColumnVectors; ++c) {
          StoreVector(o + c * kLanes, Fma(LoadVector<F32>(o + c * kLanes),
                                          Broadcast(s.factor[row + r]), sums[r][c]));
        }
      }
    }
  }
}

template <Element element, bool whole>
void RunDecodeOf(const GroupTile& tile, int64_t key_begin, int64_t key_end, float* memory,
                 void* scratch) {
  const DecodeScratch s = MakeDecodeScratch(scratch, tile);
  const Partial partial = MakePartial(memory, s.rows);
  for (int64_t row = 0; row < s.rows; ++row) {
    const unsigned char* q = tile.q + row * tile.q_head_stride_bytes;
    for (int64_t i = 0; i < s.padded_dim; i += 2 * kLanes) {
      const Pair elems = row < tile.group ? LoadPair<element, whole>(q, i, tile.head_dim) : Pair{};
      for (int h = 0; h < 2; ++h) {
        StoreVector(s.q + row * s.padded_dim + i + h * kLanes, elems.half[h]);
        StoreVector(partial.o + row * s.padded_dim + i + h * kLanes, F32{});
      }
    }
    for (int64_t i = 0; i < kDecodeKeys; ++i) s.scores[row * kDecodeKeys + i] = 0;
    partial.max[row] = -kInfinity;
    partial.sum[row] = 0;
    s.factor[row] = 0;
  }
  const KeyRange range = tile.band.RowKeys(0, tile.kv_len);
  const int64_t end = Least(key_end, range.end);
  for (int64_t key = range.begin > key_begin ? range.begin : key_begin; key < end;
       key += kDecodeKeys) {
    const int64_t count = Least(end - key, kDecodeKeys);
    DotProducts<element, whole>(tile, s, key, count);
    DecodeSoftmax(tile, s, partial, key, count);
    // The rows that fill up the last block keep probabilities of 0.
    for (int64_t i = tile.group * kDecodeKeys; i < s.rows * kDecodeKeys; ++i) s.scores[i] = 0;
    AddDecodeValues<element, whole>(tile, s, partial, key, count, end);
  }
}

void RunDecode(const GroupTile& tile, int64_t key_begin, int64_t key_end, float* partial,
               void* scratch) {
  ForElement(tile.element, [&](auto type) {
    if (tile.head_dim % kColumnElems == 0) {
      RunDecodeOf<type.value, true>(tile, key_begin, key_end, partial, scratch);
    } else {
      RunDecodeOf<type.value, false>(tile, key_begin, key_end, partial, scratch);
    }
  });
}

// One head: the sum of O over the splits by their weights, over the sum of sums.
template <Element element>
void MergeRow(const GroupTile& tile, const float* partials, int64_t splits, int64_t row) {
  const int64_t rows = PaddedRows(tile.group), padded_dim = PaddedDim(tile.head_dim);
  const int64_t step = PartialElems(tile.group, tile.head_dim);
  float max = -kInfinity;
  for (int64_t split = 0; split < splits; ++split) {
    const float one = partials[split * step + row];
    max = one > max ? one : max;
  }
  const float shift = max == -kInfinity ? 0.0f : max;
  float sum = 0;
  for (int64_t split = 0; split < splits; ++split) {
    const float weight = Exp(Broadcast(partials[split * step + row] - shift))[0];
    sum += weight * partials[split * step + rows + row];
  }
  unsigned char* to = tile.o + row * tile.o_head_stride_bytes;
  for (int64_t column = 0; column < tile.head_dim; column += 2 * kLanes) {
    Pair o{};
    for (int64_t split = 0; split < splits; ++split) {
      const F32 weight = Exp(Broadcast(partials[split * step + row] - shift));
      const float* from = partials + split * step + 2 * rows + row * padded_dim + column;
      for (int h = 0; h < 2; ++h) {
        o.half[h] = Fma(LoadVector<F32>(from + h * kLanes), weight, o.half[h]);
      }
    }
    for (F32& half : o.half) half = sum == 0.0f ? F32{} : half / Broadcast(sum);
    StorePair<element>(o, column, tile.head_dim, to);
  }
  if (tile.lse == nullptr) return;
  tile.lse[row * tile.lse_head_stride] =
      sum == 0.0f ? -kInfinity : static_cast<float>(static_cast<double>(max) + __builtin_log(sum));
}

void MergeDecode(const GroupTile& tile, const float* partials, int64_t splits) {
  for (int64_t row = 0; row < tile.group; ++row) {
    ForElement(tile.element, [&](auto type) { MergeRow<type.value>(tile, partials, splits, row); });
  }
}

int64_t DecodePartialElems(int64_t group, int64_t head_dim) {
  return PartialElems(group, head_dim);
}

int64_t DecodeScratchBytes(int64_t group, int64_t head_dim) {
  const int64_t rows = PaddedRows(group);
  return rows * (PaddedDim(head_dim) + kDecodeKeys + 1) * static_cast<int64_t>(sizeof(float));
}

constexpr DecodeKernel MakeDecodeKernel(const char* arch) {
  return {arch, kDecodeKeys, &DecodePartialElems, &DecodeScratchBytes, &RunDecode, &MergeDecode};
}

}  // namespace
}  // namespace attnd::kernels::cpu
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_DECODE_BODY_H_
