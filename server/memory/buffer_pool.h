// Bounded host memory for payloads and answers.
#ifndef ATTND_SERVER_MEMORY_BUFFER_POOL_H_
#define ATTND_SERVER_MEMORY_BUFFER_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "server/clock.h"
#include "server/memory/block.h"

namespace attnd::server {

class BufferPool;

// Owns bytes of a pool, aligned to 64; gives them back when destroyed. Movable, not copyable. May
// outlive the pool: the pool's state stays until its last buffer is gone. Empty buffers (size 0)
// are valid and cost nothing. A lent one owns nothing and counts against no pool.
class Buffer {
 public:
  Buffer() = default;
  // Memory of somebody else's, which outlives every use of the buffer; aligned as it is.
  static Buffer Lend(unsigned char* data, int64_t size_bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  unsigned char* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  friend class BufferPool;
  struct State;
  std::shared_ptr<State> state_;
  unsigned char* data_ = nullptr;
  int64_t size_bytes_ = 0;
  int64_t block_bytes_ = 0;
};

// Blocks are kept for reuse up to the budget, so that a steady load touches no fresh page. A block
// that nobody has asked for during the last kKeptReleases releases goes back to the system, so that
// one huge call does not hold its memory for ever. Thread-safe.
class BufferPool {
 public:
  // Far more than the calls in flight, whose blocks stay; a second's worth of small calls at most.
  static constexpr uint64_t kKeptReleases = 4096;

  // At most `budget_bytes` are out at once, rounded-up block sizes counted; kept blocks are freed
  // before a new one would pass the budget. `blocks` is where they come from: host memory; null:
  // the system's.
  explicit BufferPool(int64_t budget_bytes, std::shared_ptr<BlockAllocator> blocks = nullptr);
  ~BufferPool();

  // RESOURCE_EXHAUSTED when the budget is out or there are no more blocks (try again when something
  // is given back), INVALID_ARGUMENT when the size can never fit. The bytes are not initialised.
  absl::StatusOr<Buffer> Allocate(int64_t size_bytes);

  // What a buffer of this size counts against the budget: at most 12.5 % and 63 bytes more.
  int64_t BlockBytes(int64_t size_bytes) const;
  // What this buffer counts against this pool's budget: 0 if it is another pool's.
  int64_t HeldBytes(const Buffer& buffer) const;

  // How often something has been given back. Read it before an Allocate that may fail, and pass it
  // to WaitForRelease, so that nothing given back in between is missed.
  uint64_t releases() const;
  // Waits until releases() differs from `seen` or `deadline` passes. May return without a reason.
  void WaitForRelease(uint64_t seen, Clock& clock, TimePoint deadline);

  int64_t budget_bytes() const;
  // Out now; kept for reuse.
  int64_t used_bytes() const;
  int64_t kept_bytes() const;

 private:
  std::shared_ptr<Buffer::State> state_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_MEMORY_BUFFER_POOL_H_
