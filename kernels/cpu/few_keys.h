// A query tile whose rows all see the same few keys, as in cross-attention to a few tokens: rows
// are read once and written once, with little in between, so that turning them, as flash_body.h
// does, takes longer than all else. Here vectors run along head_dim; the scores of kLanes rows are
// added up together and have a lane each. A row's bits depend on nothing but the row and the keys.
//
// Included by the kernel's translation units alone.
#ifndef ATTND_KERNELS_CPU_FEW_KEYS_H_
#define ATTND_KERNELS_CPU_FEW_KEYS_H_

#include "kernels/cpu/config.h"
#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/flash_rows.h"
#include "kernels/cpu/flash_scores.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu {
namespace {

// kLanes rows of the tile, of which those past its end repeat its last.
struct FewRows {
  int64_t first;
  int64_t count;

  ATTND_CPU_INLINE int64_t At(int64_t lane) const {
    return first + (lane < count ? lane : count - 1);
  }
};

// The dot products of kLanes rows with each key.
template <Element element, int kKeys>
ATTND_CPU_INLINE void DotProducts(const FlashTile& tile, const FewRows& rows, const float* keys,
                                  int64_t stride, F32 (&dots)[kKeys]) {
  F32 sums[kKeys][kLanes] = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    const unsigned char* q = tile.q + rows.At(lane) * tile.q_row_stride_bytes;
    F32 row[kKeys] = {};
    for (int64_t i = 0; i < tile.head_dim; i += kLanes) {
      const F32 elems = LoadPart<element>(q, i, tile.head_dim);
      for (int key = 0; key < kKeys; ++key) {
        row[key] = Fma(elems, LoadVector<F32>(keys + key * stride + i), row[key]);
      }
    }
    for (int key = 0; key < kKeys; ++key) sums[key][lane] = row[key];
  }
  for (int key = 0; key < kKeys; ++key) dots[key] = SumOfEach(sums[key]);
}

// O of one row: the sum of values[key] * weights[key * kLanes], times factor.
template <Element element, int kKeys>
ATTND_CPU_INLINE void StoreAnswer(const FlashTile& tile, int64_t row, const float* weights,
                                  const float* values, int64_t stride, float factor) {
  unsigned char* o = tile.o + row * tile.o_row_stride_bytes;
  F32 weight[kKeys];
  for (int key = 0; key < kKeys; ++key) weight[key] = Broadcast(weights[key * kLanes]);
  for (int64_t i = 0; i < tile.head_dim; i += kLanes) {
    F32 sum{};
    for (int key = 0; key < kKeys; ++key) {
      sum = Fma(weight[key], LoadVector<F32>(values + key * stride + i), sum);
    }
    StorePart<element>(sum * factor, i, tile.head_dim, o);
  }
}

template <Element element, int kKeys>
void RunFewKeysOf(const FlashTile& tile, float* memory) {
  const int64_t stride = KvRowElems(tile.head_dim);
  float* const keys = memory;
  float* const values = keys + kKeys * stride;
  for (int key = 0; key < kKeys; ++key) {
    LoadRowOf<element>(static_cast<const unsigned char*>(tile.k.Row(key)), tile.head_dim,
                       keys + key * stride);
    LoadRowOf<element>(static_cast<const unsigned char*>(tile.v.Row(key)), tile.head_dim,
                       values + key * stride);
  }
  const bool adjusts = AdjustsScores(tile);
  const F32 unit = Broadcast(ScoreUnit(tile) * kLog2E);
  const F32 least = Broadcast(kLeastExponent) / unit;
  for (FewRows rows{0, 0}; rows.first < tile.rows; rows.first += kLanes) {
    rows.count = tile.rows - rows.first < kLanes ? tile.rows - rows.first : kLanes;
    F32 scores[kKeys];
    DotProducts<element>(tile, rows, keys, stride, scores);
    if (adjusts) {
      const F32 positions = Positions(tile, tile.q_begin + rows.first, 0);
      for (int key = 0; key < kKeys; ++key) {
        scores[key] = Score(tile, scores[key], positions, key);
      }
    }
    F32 max = Broadcast(-kInfinity);
    for (const F32& score : scores) max = Max(score, max);
    // Nothing but -inf: any finite number in the maximum's place gives exp(-inf) = 0.
    const F32 shift = max == -kInfinity ? F32{} : max;
    float weights[kKeys * kLanes];
    F32 sum{};
    for (int key = 0; key < kKeys; ++key) {
      const F32 weight = Exp2(scores[key] - shift, unit, least);
      StoreVector(weights + key * kLanes, weight);
      sum += weight;
    }
    const F32 factor = sum == 0.0f ? F32{} : 1.0f / sum;
    for (int64_t lane = 0; lane < rows.count; ++lane) {
      const int64_t row = rows.first + lane;
      StoreAnswer<element, kKeys>(tile, row, weights + lane, values, stride, factor[lane]);
      if (tile.lse != nullptr) tile.lse[row] = Lse(tile, max[lane], sum[lane]);
    }
  }
}

// Of kKeys keys, or fewer.
template <Element element, int kKeys>
ATTND_CPU_INLINE void RunUpTo(const FlashTile& tile, float* memory) {
  if constexpr (kKeys > 1) {
    if (tile.kv_len < kKeys) return RunUpTo<element, kKeys - 1>(tile, memory);
  }
  RunFewKeysOf<element, kKeys>(tile, memory);
}

// `memory` is the tile's scratch.
ATTND_CPU_INLINE void RunFewKeys(const FlashTile& tile, float* memory) {
  ForElement(tile.element, [&](auto type) { RunUpTo<type.value, kFewKeys>(tile, memory); });
}

}  // namespace
}  // namespace attnd::kernels::cpu
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_FEW_KEYS_H_
