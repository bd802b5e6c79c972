#include "server/memory/slab_allocator.h"

#include <algorithm>
#include <iterator>

namespace attnd::server {

SlabAllocator::SlabAllocator(const SlabOptions& options, std::shared_ptr<BlockAllocator> source)
    : options_(options), source_(std::move(source)) {}

SlabAllocator::~SlabAllocator() {
  MutexLock lock(mutex_);
  for (const auto& [begin, size_bytes] : slabs_) {
    source_->Free(reinterpret_cast<unsigned char*>(begin), size_bytes);
  }
}

int64_t SlabAllocator::Rounded(int64_t block_bytes) const {
  return (block_bytes + options_.alignment_bytes - 1) & -options_.alignment_bytes;
}

unsigned char* SlabAllocator::New(int64_t block_bytes) {
  if (block_bytes > options_.budget_bytes) return nullptr;
  const int64_t bytes = Rounded(block_bytes);
  MutexLock lock(mutex_);
  unsigned char* block = Cut(bytes);
  if (block == nullptr && AddSlab(bytes)) block = Cut(bytes);
  if (block == nullptr && FreeEmptySlabsLocked() && AddSlab(bytes)) block = Cut(bytes);
  if (block != nullptr) used_bytes_ += bytes;
  return block;
}

// From the smallest free range that holds it.
unsigned char* SlabAllocator::Cut(int64_t block_bytes) {
  const auto found = by_size_.lower_bound({block_bytes, 0});
  if (found == by_size_.end()) return nullptr;
  const auto [size_bytes, begin] = *found;
  RemoveRange(begin, size_bytes);
  if (size_bytes > block_bytes) AddRange(begin + block_bytes, size_bytes - block_bytes);
  return reinterpret_cast<unsigned char*>(begin);
}

bool SlabAllocator::AddSlab(int64_t block_bytes) {
  const int64_t left_bytes =
      (options_.budget_bytes - held_bytes_) / options_.alignment_bytes * options_.alignment_bytes;
  if (block_bytes > left_bytes) return false;
  int64_t slab_bytes = std::min(std::max(Rounded(options_.slab_bytes), block_bytes), left_bytes);
  unsigned char* slab = source_->New(slab_bytes);
  if (slab == nullptr && slab_bytes > block_bytes) {
    slab_bytes = block_bytes;
    slab = source_->New(slab_bytes);
  }
  if (slab == nullptr) return false;
  const auto begin = reinterpret_cast<Address>(slab);
  slabs_[begin] = slab_bytes;
  held_bytes_ += slab_bytes;
  AddRange(begin, slab_bytes);
  return true;
}

bool SlabAllocator::FreeEmptySlabs() {
  MutexLock lock(mutex_);
  return FreeEmptySlabsLocked();
}

bool SlabAllocator::FreeEmptySlabsLocked() {
  const size_t before = slabs_.size();
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    const auto [begin, size_bytes] = *slab;
    const auto range = free_.find(begin);
    if (range == free_.end() || range->second != size_bytes) {
      ++slab;
      continue;
    }
    RemoveRange(begin, size_bytes);
    held_bytes_ -= size_bytes;
    source_->Free(reinterpret_cast<unsigned char*>(begin), size_bytes);
    slab = slabs_.erase(slab);
  }
  return slabs_.size() < before;
}

void SlabAllocator::Free(unsigned char* block, int64_t block_bytes) {
  auto begin = reinterpret_cast<Address>(block);
  int64_t size_bytes = Rounded(block_bytes);
  MutexLock lock(mutex_);
  used_bytes_ -= size_bytes;
  const auto slab = std::prev(slabs_.upper_bound(begin));
  const Address slab_end = slab->first + slab->second;
  const auto after = free_.find(begin + size_bytes);
  if (after != free_.end() && after->first < slab_end) {
    size_bytes += after->second;
    RemoveRange(after->first, after->second);
  }
  const auto next = free_.upper_bound(begin);
  if (next != free_.begin()) {
    const auto [previous, previous_bytes] = *std::prev(next);
    if (previous >= slab->first && previous + previous_bytes == begin) {
      RemoveRange(previous, previous_bytes);
      begin = previous;
      size_bytes += previous_bytes;
    }
  }
  AddRange(begin, size_bytes);
}

void SlabAllocator::AddRange(Address begin, int64_t size_bytes) {
  free_[begin] = size_bytes;
  by_size_.insert({size_bytes, begin});
}

void SlabAllocator::RemoveRange(Address begin, int64_t size_bytes) {
  free_.erase(begin);
  by_size_.erase({size_bytes, begin});
}

int64_t SlabAllocator::used_bytes() const {
  MutexLock lock(mutex_);
  return used_bytes_;
}

int64_t SlabAllocator::held_bytes() const {
  MutexLock lock(mutex_);
  return held_bytes_;
}

}  // namespace attnd::server
