#include "client/waited_call.h"

#include <utility>

#include "kernels/sync.h"

namespace attnd::client {
namespace {

using ::std::chrono::steady_clock;

bool IsOnGpu(const AttentionRequest& request) {
  const LocalRegion* const region = request.q.region;
  return region != nullptr && region->on_gpu();
}

// What a call needs that goes without gRPC; null: it cannot.
std::shared_ptr<LocalContext> WithoutGrpc(Core& core, const AttentionRequest& request,
                                          const EncodedRequest& encoded, const TimeLeft& time) {
  const ClientOptions& options = core.options;
  // Metadata are for whoever stands between.
  if (!options.calls_without_grpc || !options.metadata.empty()) return nullptr;
  const LocalServer* const server = LocalServerOf(request, encoded);
  if (server == nullptr) return nullptr;
  regions::UniqueFd socket =
      core.call_sockets.Take(*server, time.left().value_or(absl::InfiniteDuration()));
  if (!socket.ok()) return nullptr;
  return std::make_shared<LocalContext>(core.call_sockets, *server, std::move(socket));
}

steady_clock::time_point After(absl::Duration timeout) {
  // A century is for ever, and does not overflow the clock.
  if (timeout > absl::Hours(24 * 36500)) return steady_clock::time_point::max();
  return steady_clock::now() + absl::ToChronoNanoseconds(timeout);
}

}  // namespace

// Where the result comes, or what that is to be made of.
class WaitedCall::Waiter {
 public:
  explicit Waiter(const AttentionRequest& request) : expected_(request) {}

  const ExpectedAnswer& expected() const { return expected_; }

  void Take(Reply value) ABSL_LOCKS_EXCLUDED(mutex_) {
    const Failure failure = value.failure;
    absl::optional<absl::StatusOr<AttentionResult>> decoded;
    if (IsShort(value)) decoded = Decode(expected_, value);
    MutexLock lock(mutex_);
    failure_ = failure;
    if (decoded) {
      result_ = std::move(decoded);
    } else {
      reply_ = std::move(value);
    }
    done_.NotifyOne();
  }

  absl::optional<absl::StatusOr<AttentionResult>> WaitUntil(TimePoint until, Failure& failure)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::optional<Reply> long_reply;
    {
      MutexLock lock(mutex_);
      while (!reply_ && !result_) {
        if (until == TimePoint::max()) {
          done_.Wait(mutex_);
        } else if (!done_.WaitUntil(mutex_, until) && !reply_ && !result_) {
          return absl::nullopt;
        }
      }
      failure = failure_;
      if (result_) return *std::move(result_);
      long_reply = std::move(reply_);
    }
    return Decode(expected_, *long_reply);
  }

 private:
  const ExpectedAnswer expected_;
  Mutex mutex_;
  CondVar done_;
  absl::optional<Reply> reply_ ABSL_GUARDED_BY(mutex_);
  absl::optional<absl::StatusOr<AttentionResult>> result_ ABSL_GUARDED_BY(mutex_);
  Failure failure_ ABSL_GUARDED_BY(mutex_);
};

WaitedCall::WaitedCall(std::shared_ptr<Core> core, LocalRegions& regions, AttentionRequest request,
                       Progress progress)
    : core_(std::move(core)),
      request_(std::move(request)),
      progress_(progress),
      time_(request_.timeout) {
  absl::StatusOr<std::unique_ptr<StagedCall>> staged = Stage(regions, request_, time_);
  if (!staged.ok()) {
    refusal_ = staged.status();
    return;
  }
  staged_ = *std::move(staged);
  StartCall(staged_ != nullptr ? staged_->request() : request_);
}

WaitedCall::~WaitedCall() {
  if (ended_) return;
  Cancel();
  WaitFor(absl::InfiniteDuration());
}

void WaitedCall::StartCall(const AttentionRequest& request) {
  absl::StatusOr<EncodedRequest> encoded = Encode(request);
  if (!encoded.ok()) {
    refusal_ = encoded.status();
    return;
  }
  absl::optional<Waiting> waiting;
  if (progress_ == Progress::kWhileWaited) {
    waiting.emplace();
    waiting->busy_poll = IsOnGpu(request) ? core_->options.busy_poll : absl::ZeroDuration();
    waiting->local = WithoutGrpc(*core_, request, *encoded, time_);
  }
  waiter_ = std::make_shared<Waiter>(request);
  now_ = ComputeCall::Start(
      core_, *std::move(encoded), waiter_->expected(), time_.left(),
      [waiter = waiter_](Reply reply) { waiter->Take(std::move(reply)); }, waiting);
  call_.SwitchTo(now_);
}

absl::optional<absl::StatusOr<AttentionResult>> WaitedCall::WaitUntil(TimePoint until) {
  if (!refusal_.ok()) return refusal_;
  if (!now_->Poll(until)) return absl::nullopt;
  return waiter_->WaitUntil(until, failure_);
}

absl::optional<absl::StatusOr<AttentionResult>> WaitedCall::WaitFor(absl::Duration timeout) {
  const TimePoint until = After(timeout);
  absl::optional<absl::StatusOr<AttentionResult>> result = WaitUntil(until);
  if (result && staged_ != nullptr) {
    staged_->Finish(*result);
    staged_.reset();
    if (GoesAnotherWay(request_, result->status())) {
      StartCall(request_);
      result = WaitUntil(until);
    }
  }
  ended_ = result.has_value();
  return result;
}

}  // namespace attnd::client
