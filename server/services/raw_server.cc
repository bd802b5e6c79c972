#include "server/services/raw_server.h"

#include <utility>

namespace attnd::server {
namespace {

// Places for calls that a queue has ready: a call that finds none on its connection's queue would
// take another's, and two threads from there on.
constexpr int kExpected = 64;

}  // namespace

// A place for a call, until there is one.
class RawServer::Arrival final : public Completion {
 public:
  Arrival(RawServer& server, Queue* queue)
      : server_(server), queue_(queue), stream_(std::make_unique<RawStream>()) {
    server_.service_.RequestCall(&stream_->context(), &stream_->operations(), queue, queue,
                                 static_cast<Completion*>(this));
  }

  void Complete(bool ok) override {
    const std::unique_ptr<Arrival> self(this);
    if (!ok) return;  // the server has been shut down
    server_.Expect(queue_);
    server_.Enter();
    stream_->OnEnd([server = &server_] { server->Leave(); });
    server_.begin_(std::move(stream_));
  }

 private:
  RawServer& server_;
  Queue* const queue_;
  std::unique_ptr<RawStream> stream_;
};

RawServer::RawServer(const RawServerOptions& options, Begin begin)
    : options_(options), begin_(std::move(begin)) {}

RawServer::~RawServer() { Stop(); }

void RawServer::AddTo(grpc::ServerBuilder& builder) {
  builder.RegisterAsyncGenericService(&service_);
  for (int i = 0; i < options_.threads; ++i) queues_.push_back(builder.AddCompletionQueue());
}

void RawServer::Start() {
  for (const auto& queue : queues_) {
    for (int i = 0; i < kExpected; ++i) Expect(queue.get());
    threads_.emplace_back([this, &queue] { Serve(*queue); });
  }
}

void RawServer::Stop() {
  {
    MutexLock lock(mutex_);
    while (calls_ > 0) empty_.Wait(mutex_);
  }
  for (const auto& queue : queues_) queue->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  if (threads_.empty()) {  // never started
    for (const auto& queue : queues_) Serve(*queue);
  }
  threads_.clear();
  queues_.clear();
}

void RawServer::Expect(Queue* queue) { new Arrival(*this, queue); }

void RawServer::Serve(Queue& queue) const {
  void* tag = nullptr;
  bool ok = false;
  while (Next(queue, &tag, &ok)) static_cast<Completion*>(tag)->Complete(ok);
}

bool RawServer::Next(Queue& queue, void** tag, bool* ok) const {
  if (options_.busy_poll.count() > 0) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point asleep_from = Clock::now() + options_.busy_poll;
    do {
      const Queue::NextStatus next = queue.AsyncNext(tag, ok, gpr_inf_past(GPR_CLOCK_MONOTONIC));
      if (next != Queue::TIMEOUT) return next == Queue::GOT_EVENT;
    } while (Clock::now() < asleep_from);
  }
  return queue.Next(tag, ok);
}

void RawServer::Enter() {
  MutexLock lock(mutex_);
  ++calls_;
}

void RawServer::Leave() {
  MutexLock lock(mutex_);
  // Under the lock: Stop may return at once.
  if (--calls_ == 0) empty_.NotifyAll();
}

}  // namespace attnd::server
