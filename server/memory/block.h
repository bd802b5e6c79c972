// Raw blocks of memory, and the sizes they come in.
#ifndef ATTND_SERVER_MEMORY_BLOCK_H_
#define ATTND_SERVER_MEMORY_BLOCK_H_

#include <cstdint>
#include <memory>

namespace attnd::server {

// A cache line, and the widest vector load.
inline constexpr int64_t kBlockAlignment = 64;

// `size_bytes` rounded up to its size class: eight classes for each power of two, so that a block
// fits whatever is a little smaller and wastes at most an eighth. size_bytes > 0.
int64_t SizeClassBytes(int64_t size_bytes);

// Where blocks come from: the system, pinned memory, a GPU's memory. Thread-safe.
class BlockAllocator {
 public:
  virtual ~BlockAllocator() = default;
  // A block aligned to kBlockAlignment at least, not initialised; null if there is none now.
  // `block_bytes` is a multiple of kBlockAlignment, > 0.
  virtual unsigned char* New(int64_t block_bytes) = 0;
  // `block_bytes` as New() was told.
  virtual void Free(unsigned char* block, int64_t block_bytes) = 0;
};

// The system's memory; pages of large blocks go back at once.
std::shared_ptr<BlockAllocator> SystemBlocks();

// Under AddressSanitizer, only the first `size_bytes` of the block may be touched from here on.
void AllowBytes(unsigned char* block, int64_t size_bytes, int64_t block_bytes);

}  // namespace attnd::server

#endif  // ATTND_SERVER_MEMORY_BLOCK_H_
