// Memory that calls may hold while their bytes come in: a permit is taken before the first read of
// a call, so that bytes which nobody has room for stay with the sender.
#ifndef ATTND_SERVER_MEMORY_RECEIVE_BUDGET_H_
#define ATTND_SERVER_MEMORY_RECEIVE_BUDGET_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"

namespace attnd::server {

class ReceiveBudget;

// Holds bytes of a budget; gives them back when destroyed. Movable.
class ReceivePermit {
 public:
  ReceivePermit() = default;
  ReceivePermit(ReceivePermit&& other) noexcept;
  ReceivePermit& operator=(ReceivePermit&& other) noexcept;
  ~ReceivePermit();

  int64_t size_bytes() const { return size_bytes_; }
  // Gives the difference back; larger than size_bytes() is a programming error.
  void ShrinkTo(int64_t size_bytes);

 private:
  friend class ReceiveBudget;
  struct State;
  ReceivePermit(std::shared_ptr<State> state, int64_t size_bytes);
  std::shared_ptr<State> state_;
  int64_t size_bytes_ = 0;
};

// First come, first served: a large call is not passed by small ones for ever. Thread-safe.
class ReceiveBudget {
 public:
  // Called with no lock held; may itself acquire, cancel, and give permits back. One waiting call
  // is told at a time, in order.
  using Granted = std::function<void(ReceivePermit)>;

  ReceiveBudget(int64_t budget_bytes, int64_t max_waiting);
  // Calls that still wait are dropped: their `granted` is never called.
  ~ReceiveBudget();

  // Calls `granted` with the permit, on this thread if there is room now, otherwise on a thread
  // that makes room (by giving a permit back, or by cancelling a larger call ahead). `*ticket` is
  // what Cancel takes (0 if granted at once); it is written before `granted` can be called
  // elsewhere. INVALID_ARGUMENT if the size can never fit; RESOURCE_EXHAUSTED if max_waiting calls
  // wait already; `granted` is then not called.
  absl::Status Acquire(int64_t size_bytes, Granted granted, uint64_t* ticket);

  // True if the waiting call was taken out: `granted` will not be called. False if it was, is
  // being, or was never there.
  bool Cancel(uint64_t ticket);

  int64_t budget_bytes() const;
  int64_t used_bytes() const;
  int64_t waiting() const;

 private:
  std::shared_ptr<ReceivePermit::State> state_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_MEMORY_RECEIVE_BUDGET_H_
