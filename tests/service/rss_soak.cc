// rss_soak [calls]: sends small calls to the program attnd and watches its memory. Exit status 0 if
// it is flat: after a tenth of the calls, it grows by no more than the noise of an allocator.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/service/harness.h"
#include "tests/service/process.h"

namespace attnd::testing {
namespace {

constexpr int kThreads = 8;
constexpr int64_t kNoiseBytes = int64_t{4} << 20;

bool Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& bytes) {
  return PendingCall(channel, bytes).Wait().status.ok();
}

// True if all were answered.
bool CallMany(const std::string& address, int64_t calls) {
  std::atomic<int64_t> left{calls};
  std::atomic<bool> good{true};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto channel = Connect(address);
      const std::string bytes = MakeRequest({.q_len = 1 + t * 3, .kv_len = 32}).SerializeAsString();
      while (left-- > 0) {
        if (!Call(channel, bytes)) good = false;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return good;
}

int Soak(int64_t calls) {
  AttndProcess attnd({"--drain_delay_ms=0", "--log_level=warning"});
  if (!attnd.WaitUntilReady()) return 1;
  int64_t first = 0;
  std::printf("%10s %12s\n", "calls", "RSS MiB");
  for (int tenth = 1; tenth <= 10; ++tenth) {
    if (!CallMany(attnd.address(), calls / 10)) return 1;
    const int64_t rss = attnd.RssBytes();
    std::printf("%10lld %12.1f\n", static_cast<long long>(calls / 10 * tenth),
                static_cast<double>(rss) / (1 << 20));
    if (tenth == 1) first = rss;
    if (rss - first > kNoiseBytes) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace attnd::testing

int main(int argc, char** argv) {
  const int64_t calls = argc > 1 ? std::atoll(argv[1]) : 100'000;
  if (calls < 10) {
    std::fprintf(stderr, "rss_soak: %s: at least 10 calls\n", argv[1]);
    return 2;
  }
  return attnd::testing::Soak(calls);
}
