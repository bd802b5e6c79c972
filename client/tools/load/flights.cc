#include "client/tools/load/flights.h"

#include <utility>

namespace attnd::tools {

struct Flights::State {
  State(Recorder& r, Verifier& v) : recorder(&r), verifier(&v) {}

  Mutex mutex;
  CondVar changed;
  Recorder* recorder ABSL_GUARDED_BY(mutex);  // null: the calls that are left are lost
  Verifier* verifier ABSL_GUARDED_BY(mutex);
  std::map<int64_t, Flight> flights ABSL_GUARDED_BY(mutex);
  int64_t started ABSL_GUARDED_BY(mutex) = 0;
  bool closed ABSL_GUARDED_BY(mutex) = false;
};

Flights::Flights(const Clients& clients, const Work& work, const FlightOptions& options,
                 Recorder& recorder, Verifier& verifier)
    : clients_(clients),
      work_(work),
      options_(options),
      state_(std::make_shared<State>(recorder, verifier)),
      random_(static_cast<uint64_t>(options.seed) ^ (uint64_t{1} << 40)) {
  if (options_.cancel_share > 0) canceller_ = std::thread([this] { RunCanceller(); });
}

Flights::~Flights() { Land(TimePoint::max()); }

bool Flights::Start(size_t kind, TimePoint due, Done done) {
  Flight flight;
  flight.due = due;
  flight.kind = kind;
  flight.done = std::move(done);
  bool cancel = false;
  {
    MutexLock lock(mutex_);
    std::uniform_real_distribution<double> share;
    flight.verify = share(random_) < options_.verify_share;
    cancel = share(random_) < options_.cancel_share;
  }
  int64_t number = 0;
  size_t variant = 0;
  {
    MutexLock lock(state_->mutex);
    while (!state_->closed &&
           static_cast<int64_t>(state_->flights.size()) >= options_.max_in_flight) {
      state_->changed.Wait(state_->mutex);
    }
    if (state_->closed) return false;
    number = state_->started++;
    variant = flight.variant = static_cast<size_t>(number) % Work::kVariants;
    state_->recorder->Sent(due, std::chrono::steady_clock::now());
    state_->flights.emplace(number, std::move(flight));
  }
  const std::shared_ptr<State> state = state_;
  std::shared_ptr<Call> call = clients_[number % clients_.size()]->AttentionAsync(
      work_.Request(kind, variant), [state, number](absl::StatusOr<AttentionResult> result) {
        End(state, number, std::move(result));
      });
  {
    MutexLock lock(state_->mutex);
    const auto found = state_->flights.find(number);
    if (found != state_->flights.end()) found->second.call = std::move(call);
  }
  if (!cancel) return true;
  MutexLock lock(mutex_);
  to_cancel_.emplace_back(
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.cancel_after), number);
  changed_.NotifyAll();
  return true;
}

void Flights::Close() {
  MutexLock lock(state_->mutex);
  state_->closed = true;
  state_->changed.NotifyAll();
}

void Flights::End(const std::shared_ptr<State>& state, int64_t number,
                  absl::StatusOr<AttentionResult> result) {
  const bool answered = result.ok();
  Done done;
  {
    MutexLock lock(state->mutex);
    const auto found = state->flights.find(number);
    if (state->recorder == nullptr) return;
    const Flight& flight = found->second;
    state->recorder->Ended(flight.due, result, flight.cancelled);
    if (answered && flight.verify) {
      state->verifier->Add(flight.kind, flight.variant, *std::move(result));
    }
    done = std::move(found->second.done);
    state->flights.erase(found);
    state->changed.NotifyAll();
  }
  if (done) done(answered);
}

void Flights::Cancel(int64_t number) {
  std::shared_ptr<Call> call;
  {
    MutexLock lock(state_->mutex);
    const auto found = state_->flights.find(number);
    if (found == state_->flights.end() || found->second.call == nullptr) return;
    found->second.cancelled = true;
    call = found->second.call;
  }
  call->Cancel();  // may end it here
}

void Flights::RunCanceller() {
  for (;;) {
    int64_t number = 0;
    {
      MutexLock lock(mutex_);
      while (!landed_ &&
             (to_cancel_.empty() || to_cancel_.front().first > std::chrono::steady_clock::now())) {
        if (to_cancel_.empty()) {
          changed_.Wait(mutex_);
        } else {
          changed_.WaitUntil(mutex_, to_cancel_.front().first);
        }
      }
      if (landed_) return;
      number = to_cancel_.front().second;
      to_cancel_.pop_front();
    }
    Cancel(number);
  }
}

void Flights::Land(TimePoint deadline) {
  Close();
  std::vector<int64_t> late;
  {
    MutexLock lock(state_->mutex);
    while (!state_->flights.empty() && std::chrono::steady_clock::now() < deadline) {
      state_->changed.WaitUntil(state_->mutex, deadline);
    }
    for (const auto& [number, flight] : state_->flights) late.push_back(number);
  }
  for (int64_t number : late) Cancel(number);
  std::map<int64_t, Flight> lost;
  {
    MutexLock lock(state_->mutex);
    const TimePoint end = std::chrono::steady_clock::now() + kAfterCancel;
    while (!state_->flights.empty() && std::chrono::steady_clock::now() < end) {
      state_->changed.WaitUntil(state_->mutex, end);
    }
    state_->recorder = nullptr;
    lost.swap(state_->flights);
  }
  {
    MutexLock lock(mutex_);
    landed_ = true;
    changed_.NotifyAll();
  }
  if (canceller_.joinable()) canceller_.join();
}

}  // namespace attnd::tools
