#include "server/memory/receive_budget.h"

#include <cassert>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/sync.h"

namespace attnd::server {

// Invariants.
//  1. used_bytes is what permits hold, those in `granted` included; it is at most budget_bytes.
//  2. The first of `waiting` does not fit; nobody is granted before it.
//  3. At most one thread calls back (`delivering`), so that grants are told in order, and a
//  callback
//     that gives its permit back at once does not recurse once per waiting call.
struct ReceivePermit::State {
  struct Waiter {
    int64_t size_bytes = 0;
    ReceiveBudget::Granted granted;
  };

  State(int64_t budget, int64_t waiters) : budget_bytes(budget), max_waiting(waiters) {}

  bool Fits(int64_t size_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return size_bytes <= budget_bytes - used_bytes;
  }
  void GrantThoseThatFit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Tells everyone in `granted`, unless another thread is at it.
  static void Deliver(const std::shared_ptr<State>& state) ABSL_LOCKS_EXCLUDED(state->mutex);
  static void GiveBack(const std::shared_ptr<State>& state, int64_t size_bytes)
      ABSL_LOCKS_EXCLUDED(state->mutex);

  const int64_t budget_bytes;
  const int64_t max_waiting;
  mutable Mutex mutex;
  int64_t used_bytes ABSL_GUARDED_BY(mutex) = 0;
  uint64_t last_ticket ABSL_GUARDED_BY(mutex) = 0;
  std::map<uint64_t, Waiter> waiting ABSL_GUARDED_BY(mutex);  // tickets ascend: in order of arrival
  std::deque<Waiter> granted ABSL_GUARDED_BY(mutex);          // has its bytes, is yet to be told
  bool delivering ABSL_GUARDED_BY(mutex) = false;
};

void ReceivePermit::State::GrantThoseThatFit() {
  while (!waiting.empty() && Fits(waiting.begin()->second.size_bytes)) {
    used_bytes += waiting.begin()->second.size_bytes;
    granted.push_back(std::move(waiting.begin()->second));
    waiting.erase(waiting.begin());
  }
}

void ReceivePermit::State::Deliver(const std::shared_ptr<State>& state) {
  {
    MutexLock lock(state->mutex);
    if (state->delivering) return;
    state->delivering = true;
  }
  for (;;) {
    Waiter next;
    {
      MutexLock lock(state->mutex);
      if (state->granted.empty()) {
        state->delivering = false;
        return;
      }
      next = std::move(state->granted.front());
      state->granted.pop_front();
    }
    next.granted(ReceivePermit(state, next.size_bytes));
  }
}

void ReceivePermit::State::GiveBack(const std::shared_ptr<State>& state, int64_t size_bytes) {
  {
    MutexLock lock(state->mutex);
    state->used_bytes -= size_bytes;
    state->GrantThoseThatFit();
  }
  Deliver(state);
}

ReceivePermit::ReceivePermit(std::shared_ptr<State> state, int64_t size_bytes)
    : state_(std::move(state)), size_bytes_(size_bytes) {}

ReceivePermit::ReceivePermit(ReceivePermit&& other) noexcept
    : state_(std::move(other.state_)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

ReceivePermit& ReceivePermit::operator=(ReceivePermit&& other) noexcept {
  if (this == &other) return *this;
  const ReceivePermit gone(std::move(*this));
  state_ = std::move(other.state_);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  return *this;
}

ReceivePermit::~ReceivePermit() {
  if (state_ != nullptr) State::GiveBack(state_, size_bytes_);
}

void ReceivePermit::ShrinkTo(int64_t size_bytes) {
  assert(size_bytes >= 0 && size_bytes <= size_bytes_);
  if (size_bytes == size_bytes_) return;
  const int64_t surplus_bytes = size_bytes_ - size_bytes;
  size_bytes_ = size_bytes;
  State::GiveBack(state_, surplus_bytes);
}

ReceiveBudget::ReceiveBudget(int64_t budget_bytes, int64_t max_waiting)
    : state_(std::make_shared<ReceivePermit::State>(budget_bytes, max_waiting)) {}

ReceiveBudget::~ReceiveBudget() {
  std::map<uint64_t, ReceivePermit::State::Waiter> dropped;  // destroyed with no lock held
  MutexLock lock(state_->mutex);
  dropped.swap(state_->waiting);
}

absl::Status ReceiveBudget::Acquire(int64_t size_bytes, Granted granted, uint64_t* ticket) {
  *ticket = 0;
  if (size_bytes < 0 || size_bytes > state_->budget_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a call of ", size_bytes,
                                                   " bytes can never fit the receive budget of ",
                                                   state_->budget_bytes, " bytes"));
  }
  {
    MutexLock lock(state_->mutex);
    if (!state_->waiting.empty() || !state_->Fits(size_bytes)) {
      const auto waiting = static_cast<int64_t>(state_->waiting.size());
      if (waiting >= state_->max_waiting) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the receive budget of ", state_->budget_bytes, " bytes is out and ",
                         waiting, " calls wait for it, of at most ", state_->max_waiting));
      }
      *ticket = ++state_->last_ticket;
      state_->waiting[*ticket] = {size_bytes, std::move(granted)};
      return absl::OkStatus();
    }
    state_->used_bytes += size_bytes;
  }
  granted(ReceivePermit(state_, size_bytes));
  return absl::OkStatus();
}

bool ReceiveBudget::Cancel(uint64_t ticket) {
  ReceivePermit::State::Waiter cancelled;  // destroyed with no lock held
  {
    MutexLock lock(state_->mutex);
    const auto found = state_->waiting.find(ticket);
    if (found == state_->waiting.end()) return false;
    cancelled = std::move(found->second);
    state_->waiting.erase(found);
    state_->GrantThoseThatFit();
  }
  ReceivePermit::State::Deliver(state_);
  return true;
}

int64_t ReceiveBudget::budget_bytes() const { return state_->budget_bytes; }

int64_t ReceiveBudget::used_bytes() const {
  MutexLock lock(state_->mutex);
  return state_->used_bytes;
}

int64_t ReceiveBudget::waiting() const {
  MutexLock lock(state_->mutex);
  return static_cast<int64_t>(state_->waiting.size());
}

}  // namespace attnd::server
