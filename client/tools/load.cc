#include "client/tools/load.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "client/tools/verify.h"
#include "kernels/dtype.h"
#include "kernels/sync.h"

namespace attnd::tools {
namespace {

using Clock = std::chrono::steady_clock;

// A caller that a dead server refuses at once does not spin.
constexpr std::chrono::milliseconds kPauseAfterFailure{10};
// Different inputs, so that answers to another's question are seen.
constexpr int64_t kMostProblems = 4;
// Answers that wait for the verifier; callers wait for room.
constexpr size_t kMostToVerify = 4;

Tensor RandomTensor(DType dtype, std::vector<int64_t> shape, std::mt19937_64& random) {
  const kernels::DType kernel_dtype = dtype == DType::kFloat32   ? kernels::DType::kF32
                                      : dtype == DType::kFloat16 ? kernels::DType::kF16
                                                                 : kernels::DType::kBF16;
  Tensor tensor{dtype, std::move(shape), {}};
  tensor.bytes.resize(tensor.view().size_bytes());
  std::normal_distribution<float> normal;
  const auto elems = static_cast<int64_t>(tensor.bytes.size()) / SizeBytes(dtype);
  for (int64_t i = 0; i < elems; ++i) {
    kernels::StoreElement(tensor.bytes.data(), i, kernel_dtype, normal(random));
  }
  return tensor;
}

struct Problem {
  Problem(const LoadOptions& options, int64_t index) {
    std::mt19937_64 random(static_cast<uint64_t>(options.seed * kMostProblems + index));
    q = RandomTensor(options.dtype,
                     {options.batch, options.q_heads, options.q_len, options.head_dim}, random);
    const std::vector<int64_t> kv_shape = {options.batch, options.kv_heads, options.kv_len,
                                           options.head_dim};
    k = RandomTensor(options.dtype, kv_shape, random);
    v = RandomTensor(options.dtype, kv_shape, random);
    request.q = q.view();
    request.k = k.view();
    request.v = v.view();
    request.causal = options.causal;
    request.transport = options.transport;
    request.timeout = options.timeout;
  }
  Problem(const Problem&) = delete;

  Tensor q;
  Tensor k;
  Tensor v;
  AttentionRequest request;
};

// Checks answers on a thread of its own, so that the load goes on meanwhile.
class Verifier {
 public:
  explicit Verifier(const std::deque<Problem>& problems)
      : problems_(problems), expected_(problems.size()), thread_([this] { Run(); }) {}
  ~Verifier() { Finish(); }

  void Add(size_t problem, AttentionResult result) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    while (waiting_.size() >= kMostToVerify) changed_.Wait(mutex_);
    waiting_.emplace_back(problem, std::move(result));
    changed_.NotifyAll();
  }

  // What was added has been checked when it returns.
  void Finish() ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(mutex_);
      finished_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  // After Finish().
  absl::Status AddTo(LoadResult* result) const {
    result->verified = verified_;
    result->wrong = wrong_;
    result->worst_rel_error = worst_;
    return status_;
  }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_) {
    for (;;) {
      std::pair<size_t, AttentionResult> next;
      {
        MutexLock lock(mutex_);
        while (waiting_.empty() && !finished_) changed_.Wait(mutex_);
        if (waiting_.empty()) return;
        next = std::move(waiting_.front());
        waiting_.pop_front();
        changed_.NotifyAll();
      }
      Check(next.first, next.second);
    }
  }

  void Check(size_t problem, const AttentionResult& result) {
    if (!expected_[problem]) {
      auto computed = Expected::Compute(problems_[problem].request);
      if (!computed.ok()) {
        status_ = computed.status();
        return;
      }
      expected_[problem].emplace(*std::move(computed));
    }
    const Verification verification = expected_[problem]->Check(result);
    ++verified_;
    if (!verification.ok()) ++wrong_;
    worst_ = std::max(worst_, verification.rel_error);
  }

  const std::deque<Problem>& problems_;
  std::vector<absl::optional<Expected>> expected_;  // by problem, made when first needed
  absl::Status status_;
  int64_t verified_ = 0;
  int64_t wrong_ = 0;
  double worst_ = 0;

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<size_t, AttentionResult>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// One caller of the loop.
struct Caller {
  Client& client;
  const std::deque<Problem>& problems;
  const LoadOptions& options;
  const Clock::time_point begin;  // of what is counted
  const std::atomic<bool>& stop;
  Verifier& verifier;

  LoadResult Run(size_t number) {
    LoadResult counted;
    std::mt19937_64 random(static_cast<uint64_t>(options.seed) ^ (number << 32));
    std::uniform_real_distribution<double> share;
    const Clock::time_point end = begin + absl::ToChronoNanoseconds(options.duration);
    for (size_t i = number; Clock::now() < end && !stop; ++i) {
      const size_t problem = i % problems.size();
      const Clock::time_point start = Clock::now();
      auto result = client.Attention(problems[problem].request);
      if (start >= begin) Count(result, Clock::now() - start, &counted);
      if (!result.ok()) {
        std::this_thread::sleep_for(kPauseAfterFailure);
      } else if (start >= begin && share(random) < options.verify_share) {
        verifier.Add(problem, *std::move(result));
      }
    }
    return counted;
  }

  static void Count(const absl::StatusOr<AttentionResult>& result, Clock::duration took,
                    LoadResult* counted) {
    ++counted->sent;
    if (!result.ok()) {
      ++counted->failed_by_code[result.status().code()];
      counted->first_error.Update(result.status());
      return;
    }
    ++counted->answered;
    ++counted->answered_by_device[result->device];
    counted->retries += result->tries - 1;
    counted->payload_bytes += result->sent_bytes + result->received_bytes;
    counted->latency.Add(std::chrono::duration_cast<std::chrono::microseconds>(took).count());
  }
};

void Merge(const LoadResult& from, LoadResult* to) {
  to->sent += from.sent;
  to->answered += from.answered;
  to->retries += from.retries;
  to->payload_bytes += from.payload_bytes;
  to->first_error.Update(from.first_error);
  for (const auto& [device, count] : from.answered_by_device) {
    to->answered_by_device[device] += count;
  }
  for (const auto& [code, count] : from.failed_by_code) to->failed_by_code[code] += count;
  to->latency.Merge(from.latency);
}

}  // namespace

int64_t LoadResult::failed() const {
  int64_t total = 0;
  for (const auto& [code, count] : failed_by_code) total += count;
  return total;
}

absl::StatusOr<LoadResult> RunLoad(Client& client, const LoadOptions& options,
                                   const std::atomic<bool>& stop) {
  std::deque<Problem> problems;
  for (int64_t i = 0; i < std::min(options.concurrency, kMostProblems); ++i) {
    problems.emplace_back(options, i);
  }
  Verifier verifier(problems);
  const Clock::time_point begin = Clock::now() + absl::ToChronoNanoseconds(options.warmup);
  std::vector<LoadResult> counted(options.concurrency);
  std::vector<std::thread> threads;
  for (size_t number = 0; number < counted.size(); ++number) {
    threads.emplace_back([&, number] {
      counted[number] = Caller{client, problems, options, begin, stop, verifier}.Run(number);
    });
  }
  for (std::thread& thread : threads) thread.join();

  LoadResult result;
  result.elapsed = std::max(absl::FromChrono(Clock::now() - begin), absl::Nanoseconds(1));
  result.bound = ErrorBound(options.dtype);
  for (const LoadResult& one : counted) Merge(one, &result);
  verifier.Finish();
  if (absl::Status status = verifier.AddTo(&result); !status.ok()) return status;
  return result;
}

}  // namespace attnd::tools
