// Blocks cut from slabs, for memory that is expensive to make: pinned memory, a GPU's memory.
#ifndef ATTND_SERVER_MEMORY_SLAB_ALLOCATOR_H_
#define ATTND_SERVER_MEMORY_SLAB_ALLOCATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "kernels/sync.h"
#include "server/memory/block.h"

namespace attnd::server {

struct SlabOptions {
  // Slabs together at most; a block larger than this never fits.
  int64_t budget_bytes = 0;
  // Of a slab; a larger block gets a slab of its own size.
  int64_t slab_bytes = 0;
  // Of blocks and their sizes, a power of two, >= kBlockAlignment; what `source` gives is aligned
  // to it.
  int64_t alignment_bytes = kBlockAlignment;
};

// Slabs are made as they are needed and kept. One that holds nothing goes back to its source only
// where a block fits nowhere else, or others need it. Best fit; freed neighbours are joined, so
// that a slab whose blocks are all back is whole again: once everything is back, whatever the
// budget holds can be had.
//
// The memory itself is never touched. Thread-safe; the source is called with the lock held.
class SlabAllocator final : public BlockAllocator {
 public:
  SlabAllocator(const SlabOptions& options, std::shared_ptr<BlockAllocator> source);
  // Every block is back.
  ~SlabAllocator() override;

  unsigned char* New(int64_t block_bytes) override;
  void Free(unsigned char* block, int64_t block_bytes) override;
  // Gives slabs that hold nothing back to their source, for others to use. False if there were
  // none.
  bool FreeEmptySlabs();

  int64_t budget_bytes() const { return options_.budget_bytes; }
  // In blocks; in slabs.
  int64_t used_bytes() const;
  int64_t held_bytes() const;

 private:
  using Address = uintptr_t;

  int64_t Rounded(int64_t block_bytes) const;
  unsigned char* Cut(int64_t block_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AddSlab(int64_t block_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool FreeEmptySlabsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddRange(Address begin, int64_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveRange(Address begin, int64_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SlabOptions options_;
  const std::shared_ptr<BlockAllocator> source_;
  mutable Mutex mutex_;
  std::map<Address, int64_t> slabs_ ABSL_GUARDED_BY(mutex_);               // sizes
  std::map<Address, int64_t> free_ ABSL_GUARDED_BY(mutex_);                // ranges, within slabs
  std::set<std::pair<int64_t, Address>> by_size_ ABSL_GUARDED_BY(mutex_);  // the same
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_MEMORY_SLAB_ALLOCATOR_H_
