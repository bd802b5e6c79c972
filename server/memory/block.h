// Raw blocks of host memory, and the sizes they come in.
#ifndef ATTND_SERVER_MEMORY_BLOCK_H_
#define ATTND_SERVER_MEMORY_BLOCK_H_

#include <cstdint>

namespace attnd::server {

// A cache line, and the widest vector load.
inline constexpr int64_t kBlockAlignment = 64;

// `size_bytes` rounded up to its size class: eight classes for each power of two, so that a block
// fits whatever is a little smaller and wastes at most an eighth. size_bytes > 0.
int64_t SizeClassBytes(int64_t size_bytes);

// A block aligned to kBlockAlignment, not initialised; null if the system has none. `block_bytes`
// is a multiple of kBlockAlignment, > 0.
unsigned char* NewBlock(int64_t block_bytes);
void FreeBlock(unsigned char* block, int64_t block_bytes);

// Under AddressSanitizer, only the first `size_bytes` of the block may be touched from here on.
void AllowBytes(unsigned char* block, int64_t size_bytes, int64_t block_bytes);

}  // namespace attnd::server

#endif  // ATTND_SERVER_MEMORY_BLOCK_H_
