#include "server/memory/block.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace attnd::server {
namespace {

// From here on blocks are mapped one by one, so that freeing one gives its pages back to the system
// at once. malloc raises its own threshold to 32 MiB as blocks are freed, and then keeps them.
constexpr int64_t kMapFromBytes = int64_t{1} << 20;

class SystemAllocator final : public BlockAllocator {
 public:
  unsigned char* New(int64_t block_bytes) override {
    const auto bytes = static_cast<size_t>(block_bytes);
    if (block_bytes < kMapFromBytes) {
      return static_cast<unsigned char*>(std::aligned_alloc(kBlockAlignment, bytes));
    }
    void* const mapped =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mapped == MAP_FAILED ? nullptr : static_cast<unsigned char*>(mapped);
  }

  void Free(unsigned char* block, int64_t block_bytes) override {
    if (block_bytes < kMapFromBytes) {
      std::free(block);
    } else {
      munmap(block, static_cast<size_t>(block_bytes));
    }
  }
};

}  // namespace

int64_t SizeClassBytes(int64_t size_bytes) {
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size_bytes)));
  const int64_t step = std::max(kBlockAlignment, power / 8);
  return (size_bytes + step - 1) / step * step;
}

std::shared_ptr<BlockAllocator> SystemBlocks() { return std::make_shared<SystemAllocator>(); }

void AllowBytes([[maybe_unused]] unsigned char* block, [[maybe_unused]] int64_t size_bytes,
                [[maybe_unused]] int64_t block_bytes) {
  ASAN_POISON_MEMORY_REGION(block, static_cast<size_t>(block_bytes));
  ASAN_UNPOISON_MEMORY_REGION(block, static_cast<size_t>(size_bytes));
}

}  // namespace attnd::server
