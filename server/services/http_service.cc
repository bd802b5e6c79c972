#include "server/services/http_service.h"

#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/services/worker_pool.h"

namespace attnd::server {
namespace {

constexpr int kThreads = 2;
constexpr int64_t kWaitingConnections = 64;
constexpr time_t kStallSeconds = 5;
constexpr size_t kMaxRequestBytes = 8192;
constexpr char kText[] = "text/plain";

// Bounded: when too many wait, the thread that accepts serves one itself, and the rest stays in the
// kernel's backlog.
class BoundedQueue final : public httplib::TaskQueue {
 public:
  BoundedQueue() : workers_(std::make_unique<WorkerPool>(kThreads, kWaitingConnections)) {}
  void enqueue(std::function<void()> task) override {
    if (!workers_->TryPost(task)) task();
  }
  void shutdown() override { workers_.reset(); }

 private:
  std::unique_ptr<WorkerPool> workers_;
};

void AnswerReadiness(Readiness readiness, httplib::Response& response) {
  switch (readiness) {
    case Readiness::kReady:
      return response.set_content("ready\n", kText);
    case Readiness::kDraining:
      response.status = 404;
      return response.set_content("draining\n", kText);
    case Readiness::kWarming:
      response.status = 503;
      return response.set_content("warming\n", kText);
    case Readiness::kFaulty:
      response.status = 503;
      return response.set_content("faulty\n", kText);
  }
}

}  // namespace

class HttpService::Impl {
 public:
  Impl(Metrics* metrics, std::function<Readiness()> readiness)
      : metrics_(metrics), readiness_(std::move(readiness)) {
    server_.new_task_queue = [] { return new BoundedQueue; };
    server_.set_keep_alive_max_count(1);
    server_.set_read_timeout(kStallSeconds);
    server_.set_write_timeout(kStallSeconds);
    server_.set_payload_max_length(kMaxRequestBytes);
    // The library's default shares the port with whoever else binds it.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(metrics_->Serialize(), "text/plain; version=0.0.4");
    });
    server_.Get("/livez", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("alive\n", kText);
    });
    server_.Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
      AnswerReadiness(readiness_(), response);
    });
  }

  ~Impl() {
    if (!thread_.joinable()) return;
    // Before it runs, the library takes no stop.
    while (!server_.is_running() && !ended_) std::this_thread::yield();
    server_.stop();
    thread_.join();
  }

  absl::Status Listen(const std::string& host, int port) {
    port_ =
        port == 0 ? server_.bind_to_any_port(host) : (server_.bind_to_port(host, port) ? port : -1);
    if (port_ <= 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", host, ":", port,
                       " for HTTP: it is in use, or no address of this machine"));
    }
    thread_ = std::thread([this] {
      server_.listen_after_bind();
      ended_ = true;
    });
    return absl::OkStatus();
  }

  int port() const { return port_; }

 private:
  Metrics* const metrics_;
  const std::function<Readiness()> readiness_;
  httplib::Server server_;
  int port_ = -1;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpService>> HttpService::Start(
    const std::string& host, int port, Metrics* metrics, std::function<Readiness()> readiness) {
  auto impl = std::make_unique<Impl>(metrics, std::move(readiness));
  if (absl::Status status = impl->Listen(host, port); !status.ok()) return status;
  return std::unique_ptr<HttpService>(new HttpService(std::move(impl)));
}

HttpService::HttpService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpService::~HttpService() = default;

int HttpService::port() const { return impl_->port(); }

}  // namespace attnd::server
