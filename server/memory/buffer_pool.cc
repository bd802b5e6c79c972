#include "server/memory/buffer_pool.h"

#include <deque>
#include <list>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::server {

// Invariants.
//  1. used + kept <= budget.
//  2. `kept_blocks` is in the order of return, and so is each list of `by_size`, whose entries are
//     exactly those of `kept_blocks`.
struct Buffer::State {
  struct Kept {
    unsigned char* block;
    int64_t block_bytes;
    uint64_t returned_at;  // in releases
  };
  using KeptList = std::list<Kept>;

  State(int64_t budget, std::shared_ptr<BlockAllocator> from)
      : budget_bytes(budget), blocks(from == nullptr ? SystemBlocks() : std::move(from)) {}
  ~State() {
    for (const Kept& kept : kept_blocks) FreeBlock(kept.block, kept.block_bytes);
  }

  void FreeBlock(unsigned char* block, int64_t block_bytes) {
    AllowBytes(block, block_bytes, block_bytes);
    blocks->Free(block, block_bytes);
  }

  unsigned char* Take(int64_t block_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void FreeOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void GiveBack(unsigned char* block, int64_t block_bytes) ABSL_LOCKS_EXCLUDED(mutex);

  const int64_t budget_bytes;
  const std::shared_ptr<BlockAllocator> blocks;
  mutable Mutex mutex;
  CondVar released;
  int64_t used_bytes ABSL_GUARDED_BY(mutex) = 0;
  int64_t kept_bytes ABSL_GUARDED_BY(mutex) = 0;
  uint64_t releases ABSL_GUARDED_BY(mutex) = 0;
  KeptList kept_blocks ABSL_GUARDED_BY(mutex);
  std::map<int64_t, std::deque<KeptList::iterator>> by_size ABSL_GUARDED_BY(mutex);
};

// The block of this size that was in use last, whose pages are the warmest; null if none is kept.
unsigned char* Buffer::State::Take(int64_t block_bytes) {
  const auto found = by_size.find(block_bytes);
  if (found == by_size.end()) return nullptr;
  const KeptList::iterator newest = found->second.back();
  found->second.pop_back();
  if (found->second.empty()) by_size.erase(found);
  unsigned char* const block = newest->block;
  kept_blocks.erase(newest);
  kept_bytes -= block_bytes;
  return block;
}

void Buffer::State::FreeOldest() {
  const Kept oldest = kept_blocks.front();
  const auto found = by_size.find(oldest.block_bytes);
  found->second.pop_front();
  if (found->second.empty()) by_size.erase(found);
  kept_blocks.pop_front();
  kept_bytes -= oldest.block_bytes;
  FreeBlock(oldest.block, oldest.block_bytes);
}

void Buffer::State::GiveBack(unsigned char* block, int64_t block_bytes) {
  AllowBytes(block, 0, block_bytes);
  MutexLock lock(mutex);
  used_bytes -= block_bytes;
  kept_bytes += block_bytes;
  ++releases;
  kept_blocks.push_back({block, block_bytes, releases});
  by_size[block_bytes].push_back(std::prev(kept_blocks.end()));
  while (releases - kept_blocks.front().returned_at > BufferPool::kKeptReleases) FreeOldest();
  released.NotifyAll();
}

Buffer::Buffer(Buffer&& other) noexcept
    : state_(std::move(other.state_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      block_bytes_(std::exchange(other.block_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  const Buffer gone(std::move(*this));
  state_ = std::move(other.state_);
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  block_bytes_ = std::exchange(other.block_bytes_, 0);
  return *this;
}

Buffer Buffer::Lend(unsigned char* data, int64_t size_bytes) {
  Buffer lent;
  lent.data_ = data;
  lent.size_bytes_ = size_bytes;
  return lent;
}

Buffer::~Buffer() {
  if (state_ != nullptr) state_->GiveBack(data_, block_bytes_);
}

BufferPool::BufferPool(int64_t budget_bytes, std::shared_ptr<BlockAllocator> blocks)
    : state_(std::make_shared<Buffer::State>(budget_bytes, std::move(blocks))) {}

BufferPool::~BufferPool() = default;

absl::StatusOr<Buffer> BufferPool::Allocate(int64_t size_bytes) {
  if (size_bytes == 0) return Buffer();
  if (size_bytes < 0 || size_bytes > state_->budget_bytes ||
      BlockBytes(size_bytes) > state_->budget_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a buffer of ", size_bytes,
                                                   " bytes can never fit a pool of ",
                                                   state_->budget_bytes, " bytes"));
  }
  const int64_t block_bytes = BlockBytes(size_bytes);
  unsigned char* block = nullptr;
  {
    MutexLock lock(state_->mutex);
    if (block_bytes > state_->budget_bytes - state_->used_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("the pool of ", state_->budget_bytes,
                                                       " bytes has ", state_->used_bytes,
                                                       " out and no room for ", block_bytes));
    }
    block = state_->Take(block_bytes);
    state_->used_bytes += block_bytes;
    while (state_->used_bytes + state_->kept_bytes > state_->budget_bytes) state_->FreeOldest();
  }
  if (block == nullptr) block = state_->blocks->New(block_bytes);
  if (block == nullptr) {
    // What is kept may be what is missing.
    MutexLock lock(state_->mutex);
    while (!state_->kept_blocks.empty()) state_->FreeOldest();
    block = state_->blocks->New(block_bytes);
  }
  if (block == nullptr) {
    MutexLock lock(state_->mutex);
    state_->used_bytes -= block_bytes;
    return absl::ResourceExhaustedError(
        absl::StrCat("there is no memory for a block of ", block_bytes, " bytes"));
  }
  AllowBytes(block, size_bytes, block_bytes);
  Buffer buffer;
  buffer.state_ = state_;
  buffer.data_ = block;
  buffer.size_bytes_ = size_bytes;
  buffer.block_bytes_ = block_bytes;
  return buffer;
}

int64_t BufferPool::BlockBytes(int64_t size_bytes) const {
  if (size_bytes <= 0) return 0;
  const int64_t block_bytes = SizeClassBytes(size_bytes);
  if (block_bytes <= state_->budget_bytes) return block_bytes;
  // Whatever the budget holds can be asked for, though its class is larger.
  return (size_bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

int64_t BufferPool::HeldBytes(const Buffer& buffer) const {
  return buffer.state_ == state_ ? buffer.block_bytes_ : 0;
}

uint64_t BufferPool::releases() const {
  MutexLock lock(state_->mutex);
  return state_->releases;
}

void BufferPool::WaitForRelease(uint64_t seen, Clock& clock, TimePoint deadline) {
  MutexLock lock(state_->mutex);
  if (state_->releases == seen) clock.WaitUntil(state_->released, state_->mutex, deadline);
}

int64_t BufferPool::budget_bytes() const { return state_->budget_bytes; }

int64_t BufferPool::used_bytes() const {
  MutexLock lock(state_->mutex);
  return state_->used_bytes;
}

int64_t BufferPool::kept_bytes() const {
  MutexLock lock(state_->mutex);
  return state_->kept_bytes;
}

}  // namespace attnd::server
