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

  // The item under way, and its tile.
  Part part;
  int tile = 0;

  // In the item's query tile, of this thread's first row; and in a key tile, of s[0]. Read off the
  // thread's number when needed: there are no registers to keep them in.
  __device__ __forceinline__ static int RowInTile() {
    return static_cast<int>(threadIdx.x) / 32 * 16 - 64 + (threadIdx.x & 31) / 4;
  }
  __device__ __forceinline__ static int Column() { return 2 * (threadIdx.x & 3); }

  // Of a stage that products have read: when they are done they are done for all lanes.
  __device__ __forceinline__ static void Release(const uint64_t* ring, int index) {
    if ((threadIdx.x & 31) == 0) ptx::BarrierArrive(ptx::SharedAddress(ring + index));
  }
  __device__ __forceinline__ void ReleaseK() {
    Release(shared.k_empty, k.index());
    k.Advance();
  }
  __device__ __forceinline__ void ReleaseQ() {
    Release(shared.q_empty, q.index());
    q.Advance();
  }
  __device__ __forceinline__ void ReleaseV() {
    Release(shared.v_empty, v.index());
    v.Advance();
  }

  // Lets tiles pass by unused. Waiting for each keeps a release from counting for the tile before
  // it. A V tile is a turn, used or not: every warpgroup takes as many.
  __device__ __forceinline__ void SkipK(int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      k.WaitFull(shared.k_full);
      __syncwarp();
      ReleaseK();
    }
  }
  __device__ __forceinline__ void SkipV(int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      turns.Wait();
      turns.Pass();
      v.WaitFull(shared.v_full);
      __syncwarp();
      ReleaseV();
    }
  }

  // The slot of the item that NextItem gave last.
  __device__ __forceinline__ int Slot() const { return (items.count - 1) & (kItemSlots - 1); }

  // Lets an item that has no key for this warpgroup's rows pass by, and answers them.
  __device__ __forceinline__ void PassItem(const Work& work) {
    if (!work.tiles.none()) {
      q.WaitFull(shared.q_full);
      __syncwarp();
      ReleaseQ();
      const int count = work.tiles.last - work.tiles.first + 1;
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        SkipK(1);
        SkipV(1);
      }
    }
    StoreNothing<T>(work, consumer);
    WarpArrive(shared.item_empty, Slot());
  }

  // Takes the next item with keys for this warpgroup; others pass by. False: there is none. Nothing
  // of an item before may be under way.
  __device__ __forceinline__ bool NextItem() {
    while (true) {
      items.WaitFull(shared.item_full);
      const Work& work = shared.items[items.index()];
      if (work.none_left) return false;
      items.Advance();
      part = work.parts[consumer];
      if (!part.none()) {
        StartPart(work);
        return true;
      }
      PassItem(work);
    }
  }
  __device__ __forceinline__ void StartPart(const Work& work) {
    tile = part.last;
    to_log2 = T::kGeneral ? 1.0f : work.problem.scale * kLog2E;
    state.Reset();
  }
  // True if the item after this one starts at once for this warpgroup: its first product can then
  // be issued beside this item's last.
  __device__ __forceinline__ bool NextStartsAtOnce() {
    if constexpr (T::kQStages == 1) return false;  // its Q waits for this item's end
    // A careful item ends with more than stores: by itself.
    if (T::kScan && shared.items[Slot()].careful) return false;
    items.WaitFull(shared.item_full);
    const Work& work = shared.items[items.index()];
    const Part& next = work.parts[consumer];
    return !work.none_left && !next.none() && next.last == work.tiles.last;
  }

  __device__ __forceinline__ void IssueScores() {
    k.WaitFull(shared.k_full);
    const uint32_t a = OperandDescriptor(
        ptx::SharedAddress(shared.q[0]) + q.Offset(T::kQBytes) + consumer * 64 * 128, 16);
    const uint32_t b =
        OperandDescriptor(ptx::SharedAddress(shared.k[0]) + k.Offset(T::kKvBytes), 16);
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
    const uint32_t b = OperandDescriptor(ptx::SharedAddress(shared.v[0]) + v.Offset(T::kKvBytes),
                                         T::kKvChunkBytes);
    PinRegisters(o);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < T::kKvTile / 16; ++step) {
      Wgmma<T::kHeadDim>::template AddRegisters<Element>(
          o, p + 4 * step, b + step * (16 * 128 / 16), step > 0 || keep);
    }
    WgmmaCommit();
  }

  // Scores of `tile` are there: K, and Q after its last one, may go; then the softmax.
  __device__ __forceinline__ void FinishScores(float (&rescale)[2]) {
    PinRegisters(s);
    ReleaseK();
    const Work& work = shared.items[Slot()];
    if (tile == part.first) {
      SkipK(part.first - work.tiles.first);
      ReleaseQ();
    }
    const bool masked = tile >= part.masked_from || (T::kGeneral && tile <= part.masked_to);
    if (T::kGeneral || masked) {
      const ProblemDesc& d = work.problem;
      const int row = work.q_begin + RowInTile();
      const int key = tile * T::kKvTile + Column();
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
  // The first scores of an item, whose sums and output are new.
  __device__ __forceinline__ void FirstSoftmax() {
    float rescale[2];
    WgmmaWait<0>();
    FinishScores(rescale);
    PackProbabilities<Element>(s, p);
  }

  // The item's output is there: V may go, rows are stored.
  template <bool kMayBeCareful>
  __device__ __forceinline__ void FinishItem(unsigned long long* poisoned_tiles) {
    PinRegisters(o);
    ReleaseV();
    const int slot = Slot();
    const Work& work = shared.items[slot];
    SkipV(part.first - work.tiles.first);
    const bool finite = StoreItem<T>(o, state, work, RowInTile());
    if constexpr (T::kScan) {
      const bool careful = kMayBeCareful && work.careful;
      if (!finite && !careful) shared.redo[slot] = 1;
      if (careful && shared.give_back[slot] != 0) {
        GiveBackPoison<T>(work, work.q_begin + RowInTile() - (threadIdx.x & 31) / 4);
        const bool first_to_count =
            threadIdx.x % 128 == 0 && atomicExch(&shared.give_back[slot], kCounted) == kGiveBack;
        if (first_to_count) atomicAdd(poisoned_tiles, 1ull);
      }
    }
    WarpArrive(shared.item_empty, slot);
  }

  // The first scores of an item, with nothing beside them.
  __device__ __forceinline__ void StartItem() {
    const int skipped = shared.items[Slot()].tiles.last - tile;
    SkipK(skipped);
    SkipV(skipped);
    q.WaitFull(shared.q_full);
    IssueScores();
    FirstSoftmax();
  }

  __device__ __forceinline__ void Run(unsigned long long* poisoned_tiles) {
    turns.Start();
    bool started = false;
    while (true) {
      if (!started) {
        if (!NextItem()) return;
        StartItem();
      }
      bool keep = false;  // o holds something yet
      // The item's tiles but the last: each one's output beside the next one's scores.
#pragma unroll 1
      while (tile > part.first) {
        --tile;
        float rescale[2];
        turns.Wait();
        IssueScores();
        IssueOutput(keep);
        turns.Pass();
        WgmmaWait<1>();
        FinishScores(rescale);
        WgmmaWait<0>();
        PinRegisters(o);
        keep = true;
        if (__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < T::kHeadDim / 2; ++i) o[i] *= rescale[(i >> 1) & 1];
        }
        ReleaseV();
        PackProbabilities<Element>(s, p);
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
        FinishItem<false>(poisoned_tiles);
        NextItem();
        FirstSoftmax();
      } else {
        turns.Pass();
        WgmmaWait<0>();
        FinishItem<true>(poisoned_tiles);
      }
    }
  }
};

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_CONSUMER_CUH_
