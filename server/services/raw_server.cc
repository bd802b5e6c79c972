#include "server/services/raw_server.h"

#include <utility>

namespace attnd::server {
namespace {

// Places for calls that a queue has ready: a call that finds none on its connection's queue would
// take another's, and two threads from there on.
constexpr int kExpected = 64;

// How often the lanes are glanced at: about what a caller waits for beside one who sends without
// end. While nothing is to be done, less often.
constexpr std::chrono::milliseconds kGlance(2);
constexpr std::chrono::milliseconds kIdleGlance(20);

}  // namespace

// A place for a call, until there is one.
class RawServer::Arrival final : public Completion {
 public:
  Arrival(RawServer& server, IoLane::Queue* queue)
      : server_(server), queue_(queue), stream_(std::make_unique<RawStream>()) {
    server_.service_.RequestCall(&stream_->context(), &stream_->operations(), queue, queue,
                                 NewTag());
  }

  void Complete(bool ok) override {
    const std::unique_ptr<Arrival> self(this);
    if (!ok) return;  // the server has been shut down
    server_.Expect(queue_);
    server_.Enter();
    stream_->OnEnd([server = &server_] { server->Leave(); });
    MutexLock lock(stream_->mutex());
    server_.begin_(std::move(stream_));
  }

 private:
  RawServer& server_;
  IoLane::Queue* const queue_;
  std::unique_ptr<RawStream> stream_;
};

RawServer::RawServer(const RawServerOptions& options, Begin begin)
    : options_(options), begin_(std::move(begin)) {}

RawServer::~RawServer() { Stop(); }

void RawServer::AddTo(grpc::ServerBuilder& builder) {
  builder.RegisterAsyncGenericService(&service_);
  for (int i = 0; i < options_.threads; ++i) {
    lanes_.push_back(std::make_unique<IoLane>(builder.AddCompletionQueue(), options_.busy_poll));
  }
}

void RawServer::Start() {
  for (const auto& lane : lanes_) {
    for (int i = 0; i < kExpected; ++i) Expect(lane->queue());
    lane->Start();
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    stand_ins_.emplace_back([this] { StandIn(); });
  }
}

void RawServer::Stop() {
  {
    MutexLock lock(mutex_);
    while (calls_ > 0) empty_.Wait(mutex_);
  }
  {
    MutexLock lock(watch_);
    stopping_ = true;
  }
  stop_watching_.NotifyAll();
  unwatched_.NotifyAll();
  for (std::thread& thread : stand_ins_) thread.join();
  stand_ins_.clear();
  for (const auto& lane : lanes_) lane->Join();
  lanes_.clear();
}

void RawServer::Expect(IoLane::Queue* queue) { new Arrival(*this, queue); }

void RawServer::StandIn() {
  for (;;) {
    IoLane* lane = nullptr;
    {
      MutexLock lock(watch_);
      lane = AwaitOneLeftAlone();
    }
    if (lane == nullptr) return;
    lane->StandIn();
  }
}

IoLane* RawServer::AwaitOneLeftAlone() {
  while (watched_ && !stopping_) unwatched_.Wait(watch_);
  if (stopping_) return nullptr;
  watched_ = true;
  IoLane* const lane = Watch();
  watched_ = false;
  unwatched_.NotifyOne();
  return lane;
}

IoLane* RawServer::Watch() {
  Duration until_next = kGlance;
  while (!stopping_) {
    stop_watching_.WaitUntil(watch_, std::chrono::steady_clock::now() + until_next);
    until_next = kIdleGlance;
    const TimePoint now = std::chrono::steady_clock::now();
    for (const auto& lane : lanes_) {
      const IoLane::Seen seen = lane->Glance(now);
      if (seen == IoLane::Seen::kLeftAlone) return lane.get();
      if (seen == IoLane::Seen::kServed) until_next = kGlance;
    }
  }
  return nullptr;
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
