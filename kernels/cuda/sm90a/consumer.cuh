// A consumer warpgroup: 64 query rows. One endless pipeline of tiles, across items: the next tile's
// S = Q K^T is issued together with this tile's O += P V, and its softmax runs under that second
// product. Warpgroups issue in turn, so that one's softmax also runs under the other's products.
#ifndef ATTND_KERNELS_CUDA_SM90A_CONSUMER_CUH_
#define ATTND_KERNELS_CUDA_SM90A_CONSUMER_CUH_

#include <cstdint>

#include "kernels/cuda/sm90a/epilogue.cuh"
#include "kernels/cuda/sm90a/shared.cuh"
#include "kernels/cuda/sm90a/softmax.cuh"
#include "kernels/cuda/sm90a/wgmma.cuh"

namespace attnd::kernels::cuda::sm90a {

// Named barriers 1 to kConsumers: whose turn it is to issue products.
template <int kConsumers>
struct Turns {
  int consumer;
  __device__ __forceinline__ void Wait() const { ptx::NamedSync(1 + consumer, 256); }
  __device__ __forceinline__ void Pass() const {
    ptx::NamedArrive(1 + (consumer + 1 == kConsumers ? 0 : consumer + 1), 256);
  }
  // Before the first turn, which is consumer 0's.
  __device__ __forceinline__ void Start() const {
    if (consumer == kConsumers - 1) Pass();
  }
};

template <class T>
struct Consumer {
  using Element = typename T::Element;
  static constexpr int kScores = T::kKvTile / 2;

  // One tile of one item; `first` is the item's last one to be worked on by this warpgroup.
  struct Place {
    int slot;
    int tile;
    int first;
  };

  Shared<T>& shared;
  int consumer;
  Turns<T::kConsumers> turns;
  RingPlace<T::kQStages> q = {};
  RingPlace<T::kStages> k = {};
  RingPlace<T::kStages> v = {};
  RingPlace<kItemSlots> items = {};
  float to_log2 = 0;

  float s[kScores];
  uint32_t p[kScores / 2];
  float o[T::kHeadDim / 2];
  RowState state;

  // In the query tile, of this thread's first row; and in a key tile, of s[0]. Read off the
  // thread's number when needed: there are no registers to keep them in.
  __device__ __forceinline__ static int RowInTile() {
    return static_cast<int>(threadIdx.x) / 32 * 16 - 64 + (threadIdx.x & 31) / 4;
  }
  __device__ __forceinline__ static int Column() { return 2 * (threadIdx.x & 3); }

  // The key tiles that this warpgroup's own rows see.
  __device__ __forceinline__ KeyTiles OwnTiles(const Work& work) const {
    const int begin = work.q_begin + 64 * consumer;
    return KeyTilesOf<T>(work.problem, begin, min(begin + 64, work.problem.q_len));
  }

  // Lets tiles pass by unused. Waiting for each keeps a release from counting for the tile before
  // it. A V tile is a turn, used or not: every warpgroup takes as many.
  __device__ __forceinline__ void SkipK(int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      k.WaitFull(shared.k_full);
      WarpArrive(shared.k_empty, k.index());
      k.Advance();
    }
  }
  __device__ __forceinline__ void SkipV(int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      turns.Wait();
      turns.Pass();
      v.WaitFull(shared.v_full);
      WarpArrive(shared.v_empty, v.index());
      v.Advance();
    }
  }

  // Lets an item that has no key for this warpgroup's rows pass by, and answers them.
  __device__ __forceinline__ void PassItem(const Work& work, int slot) {
    if (!work.tiles.none()) {
      q.WaitFull(shared.q_full);
      WarpArrive(shared.q_empty, q.index());
      q.Advance();
      const int count = work.tiles.last - work.tiles.first + 1;
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        SkipK(1);
        SkipV(1);
      }
    }
    StoreNothing<T>(work, consumer);
    WarpArrive(shared.item_empty, slot);
  }

  // The next item with keys for this warpgroup; others pass by. False: there is none. Nothing of an
  // item before may be under way.
  __device__ __forceinline__ bool NextItem(Place& place) {
    while (true) {
      items.WaitFull(shared.item_full);
      const Work& work = shared.items[items.index()];
      if (work.none_left) return false;
      const KeyTiles own = OwnTiles(work);
      place = {items.index(), own.last, own.first};
      items.Advance();
      if (!own.none()) {
        to_log2 = T::kGeneral ? 1.0f : work.problem.scale * kLog2E;
        return true;
      }
      PassItem(work, place.slot);
    }
  }
  // True if the item after this one starts at once for this warpgroup: its first product can then
  // be issued beside this item's last.
  __device__ __forceinline__ bool NextStartsAtOnce() {
    items.WaitFull(shared.item_full);
    const Work& work = shared.items[items.index()];
    if (work.none_left) return false;
    const KeyTiles own = OwnTiles(work);
    return !own.none() && own.last == work.tiles.last;
  }

  __device__ __forceinline__ void IssueScores() {
    k.WaitFull(shared.k_full);
    uint32_t q_address = ptx::SharedAddress(shared.q[q.index()]) + consumer * 64 * 128;
    // Not to be worked out ahead of the loop, for all steps: that takes registers.
    asm volatile("" : "+r"(q_address));
    const uint64_t a = OperandDescriptor(q_address, 16);
    const uint64_t b = OperandDescriptor(ptx::SharedAddress(shared.k[k.index()]), 16);
    PinRegisters(s);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < T::kHeadDim / 16; ++step) {
      const int chunk = step / 4;
      const int inside = step % 4 * 32;
      Wgmma<T::kKvTile>::template AddShared<Element>(s, a + (chunk * T::kQChunkBytes + inside) / 16,
                                                     b + (chunk * T::kKvChunkBytes + inside) / 16,
                                                     step > 0);
    }
    WgmmaCommit();
  }

  __device__ __forceinline__ void IssueOutput(bool keep) {
    v.WaitFull(shared.v_full);
    const uint64_t b = OperandDescriptor(ptx::SharedAddress(shared.v[v.index()]), T::kKvChunkBytes);
    PinRegisters(o);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < T::kKvTile / 16; ++step) {
      Wgmma<T::kHeadDim>::template AddRegisters<Element>(
          o, p + 4 * step, b + step * (16 * 128 / 16), step > 0 || keep);
    }
    WgmmaCommit();
  }

  // True if a row of this warpgroup sees only part of the tile.
  __device__ __forceinline__ bool IsMasked(const Place& place) const {
    const Work& work = shared.items[place.slot];
    const int begin = work.q_begin + 64 * consumer;
    return NeedsMask<T>(work.problem, begin, min(begin + 64, work.problem.q_len), place.tile);
  }

  // Scores of `place` are there: K, and Q after its last tile, may go; then the softmax.
  __device__ __forceinline__ void FinishScores(const Place& place, bool masked,
                                               float (&rescale)[2]) {
    PinRegisters(s);
    WarpArrive(shared.k_empty, k.index());
    k.Advance();
    const Work& work = shared.items[place.slot];
    if (place.tile == place.first) {
      SkipK(place.first - work.tiles.first);
      WarpArrive(shared.q_empty, q.index());
      q.Advance();
    }
    if (T::kGeneral || masked) {
      const ProblemDesc& d = work.problem;
      const int row = work.q_begin + RowInTile();
      const int key = place.tile * T::kKvTile + Column();
      if constexpr (T::kGeneral) {
        const float slope = d.alibi_slopes ? d.alibi_slopes[work.item.q_head] : 0.0f;
        TransformScores(s, row, key,
                        ScoreTransform{d.scale, d.softcap, slope, d.kv_len - d.q_len,
                                       d.alibi_slopes != nullptr});
      }
      if (masked) MaskScores<T::kGeneral>(s, row, key, d.kv_len, d.band_lo, d.band_hi);
    }
    OnlineSoftmax(s, state, to_log2, rescale);
  }

  __device__ __forceinline__ void FinishOutput(const Place& place) {
    PinRegisters(o);
    const Work& work = shared.items[place.slot];
    if constexpr (T::kScan) {
      if (work.careful && NeedsMask<T>(work, place.tile) && shared.poisoned[v.index()] != 0) {
        atomicCAS(&shared.give_back[place.slot], 0, kGiveBack);
      }
    }
    WarpArrive(shared.v_empty, v.index());
    v.Advance();
    if (place.tile == place.first) SkipV(place.first - work.tiles.first);
  }

  __device__ __forceinline__ void FinishItem(const Place& place,
                                             unsigned long long* poisoned_tiles) {
    const Work& work = shared.items[place.slot];
    const bool finite = StoreItem<T>(o, state, work, work.q_begin + RowInTile());
    if constexpr (T::kScan) {
      if (!finite && !work.careful) shared.redo[place.slot] = 1;
      if (work.careful && shared.give_back[place.slot] != 0) {
        GiveBackPoison<T>(work, work.q_begin + RowInTile() - (threadIdx.x & 31) / 4);
        const bool first_to_count =
            threadIdx.x % 128 == 0 &&
            atomicExch(&shared.give_back[place.slot], kCounted) == kGiveBack;
        if (first_to_count) atomicAdd(poisoned_tiles, 1ull);
      }
    }
    WarpArrive(shared.item_empty, place.slot);
  }

  // The first scores of an item, with nothing beside them.
  __device__ __forceinline__ void StartItem(const Place& place) {
    const int skipped = shared.items[place.slot].tiles.last - place.tile;
    SkipK(skipped);
    SkipV(skipped);
    q.WaitFull(shared.q_full);
    IssueScores();
    FirstSoftmax(place);
  }
  __device__ __forceinline__ void FirstSoftmax(const Place& place) {
    const bool masked = IsMasked(place);
    float rescale[2];
    state.Reset();
    WgmmaWait<0>();
    FinishScores(place, masked, rescale);
    PackProbabilities<Element>(s, p);
  }

  __device__ __forceinline__ void Run(unsigned long long* poisoned_tiles) {
    turns.Start();
    Place place;
    bool started = false;
    while (true) {
      if (!started) {
        if (!NextItem(place)) return;
        StartItem(place);
      }
      bool keep = false;  // o holds something yet
      // The item's tiles but the last: each one's output beside the next one's scores.
#pragma unroll 1
      while (place.tile > place.first) {
        const Place next = {place.slot, place.tile - 1, place.first};
        const bool masked = IsMasked(next);
        float rescale[2];
        turns.Wait();
        IssueScores();
        IssueOutput(keep);
        turns.Pass();
        WgmmaWait<1>();
        FinishScores(next, masked, rescale);
        WgmmaWait<0>();
        FinishOutput(place);
        keep = true;
        if (__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < T::kHeadDim / 2; ++i) o[i] *= rescale[(i >> 1) & 1];
        }
        PackProbabilities<Element>(s, p);
        place = next;
      }
      // The last one's output, beside the next item's first scores where that starts at once.
      started = NextStartsAtOnce();
      turns.Wait();
      IssueOutput(keep);
      if (started) {
        q.WaitFull(shared.q_full);
        IssueScores();
        turns.Pass();
        WgmmaWait<1>();
        FinishOutput(place);
        FinishItem(place, poisoned_tiles);
        NextItem(place);
        FirstSoftmax(place);
      } else {
        turns.Pass();
        WgmmaWait<0>();
        FinishOutput(place);
        FinishItem(place, poisoned_tiles);
      }
    }
  }
};

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_CONSUMER_CUH_
