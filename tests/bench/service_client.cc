#include "tests/bench/service_client.h"

#include <chrono>
#include <iostream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/tools/tool.h"
#include "kernels/sync.h"

namespace attnd::bench {
namespace {

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// The kernel's time, then each call's.
absl::StatusOr<std::vector<double>> Time(Transport& transport, int min_time_ms) {
  std::vector<double> times = {0};
  const Clock::time_point begin = Clock::now();
  do {
    const Clock::time_point start = Clock::now();
    if (absl::Status status = transport.Call(&times[0]); !status.ok()) return status;
    times.push_back(MicrosecondsSince(start));
  } while (MicrosecondsSince(begin) < 1e3 * min_time_ms);
  return times;
}

// A closed loop: every call that ends starts the next.
class SmallCalls {
 public:
  explicit SmallCalls(Transport& transport) : transport_(transport) {}

  absl::StatusOr<double> PerSecond(int in_flight, int time_ms) {
    const Clock::time_point begin = Clock::now();
    end_ = begin + std::chrono::milliseconds(time_ms);
    {
      MutexLock lock(mutex_);
      running_ = in_flight;
    }
    for (int i = 0; i < in_flight; ++i) Start();
    MutexLock lock(mutex_);
    while (running_ > 0) none_running_.Wait(mutex_);
    if (!status_.ok()) return status_;
    return static_cast<double>(ended_) / MicrosecondsSince(begin) * 1e6;
  }

 private:
  void Start() {
    transport_.StartCall([this](const absl::Status& status) { Ended(status); });
  }

  void Ended(const absl::Status& status) {
    {
      MutexLock lock(mutex_);
      ++ended_;
      status_.Update(status);
      if (!status_.ok() || Clock::now() >= end_) {
        if (--running_ == 0) none_running_.NotifyAll();
        return;
      }
    }
    Start();
  }

  Transport& transport_;
  Clock::time_point end_;
  Mutex mutex_;
  CondVar none_running_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

using Numbers = std::vector<double>;

absl::StatusOr<Numbers> AsNumbers(const absl::StatusOr<double>& number) {
  if (!number.ok()) return number.status();
  return Numbers{*number};
}

// Of lines "time BYTES 1 MIN_TIME_MS", "small BYTES IN_FLIGHT TIME_MS" and "beside BULK_BYTES
// CHANNELS TIME_MS".
class Answerer {
 public:
  Answerer(Transport& transport, std::string address)
      : transport_(transport), address_(std::move(address)) {}

  absl::StatusOr<Numbers> Answer(const std::string& line) {
    std::istringstream words(line);
    std::string what;
    int64_t bytes = 0;
    int count = 0;
    int time_ms = 0;
    words >> what >> bytes >> count >> time_ms;
    if (what == "beside") {
      return AsNumbers(SmallBesideBulkUs(address_, bytes, count == 1, absl::Milliseconds(time_ms)));
    }
    if (std::exchange(prepared_bytes_, bytes) != bytes) transport_.Prepare(bytes);
    if (what == "small") return AsNumbers(SmallCalls(transport_).PerSecond(count, time_ms));
    return Time(transport_, time_ms);
  }

 private:
  Transport& transport_;
  const std::string address_;
  int64_t prepared_bytes_ = -1;
};

}  // namespace

int RunClient(const TransportEntry& entry, const std::string& address) {
  if (entry.tunes_malloc) tools::TuneProcess();
  const auto transport = entry.connect(address);
  if (!transport.ok()) {
    std::cerr << "service_bench: " << entry.name << ": " << transport.status() << std::endl;
    return 1;
  }
  Answerer answerer(**transport, address);
  for (std::string line; std::getline(std::cin, line);) {
    const auto numbers = answerer.Answer(line);
    if (numbers.ok()) {
      std::cout << "ok " << absl::StrJoin(*numbers, " ") << std::endl;
    } else {
      std::cout << numbers.status() << std::endl;
    }
  }
  return 0;
}

absl::StatusOr<std::unique_ptr<ClientProcess>> ClientProcess::Start(const TransportEntry& entry,
                                                                    const std::string& address) {
  auto child = ChildProcess::Start({ProgramDirectory() + "/service_bench",
                                    absl::StrCat("--client=", entry.name),
                                    absl::StrCat("--address=", address)});
  if (!child.ok()) return child.status();
  return std::unique_ptr<ClientProcess>(new ClientProcess(*std::move(child)));
}

absl::StatusOr<ClientProcess::Times> ClientProcess::Time(int64_t bytes, int min_time_ms) {
  const auto numbers = Ask(absl::StrCat("time ", bytes, " 1 ", min_time_ms));
  if (!numbers.ok()) return numbers.status();
  return Times{(*numbers)[0], {numbers->begin() + 1, numbers->end()}};
}

absl::StatusOr<double> ClientProcess::SmallCallsPerS(int in_flight, int time_ms) {
  const auto numbers = Ask(absl::StrCat("small ", kSmallBytes, " ", in_flight, " ", time_ms));
  if (!numbers.ok()) return numbers.status();
  return (*numbers)[0];
}

absl::StatusOr<double> ClientProcess::SmallBesideBulk(int64_t bulk_bytes, bool one_channel,
                                                      int time_ms) {
  const auto numbers =
      Ask(absl::StrCat("beside ", bulk_bytes, " ", one_channel ? 1 : 2, " ", time_ms));
  if (!numbers.ok()) return numbers.status();
  return (*numbers)[0];
}

absl::StatusOr<std::vector<double>> ClientProcess::Ask(const std::string& line) {
  const auto answer = process_->Ask(line);
  if (!answer.ok()) return answer.status();
  if (!absl::StartsWith(*answer, "ok ")) {
    return absl::UnavailableError(absl::StrCat(line, ": ", *answer));
  }
  std::istringstream words(answer->substr(3));
  std::vector<double> numbers;
  for (double number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

}  // namespace attnd::bench
