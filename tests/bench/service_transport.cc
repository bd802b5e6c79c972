#include "tests/bench/service_transport.h"

#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/client.h"
#include "kernels/sync.h"
#include "tests/bench/echo.grpc.pb.h"
#include "tests/bench/raw_echo.h"
#include "tests/bench/socket_io.h"

namespace attnd::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Done = std::function<void(const absl::Status&)>;

// One key a head, so that the kernel's work is linear in the bytes and small beside their way.
struct Problem {
  explicit Problem(int64_t q_bytes) {
    constexpr int64_t kHeadDim = 128;
    constexpr int64_t kElemBytes = 4;
    const int64_t rows = q_bytes / (kHeadDim * kElemBytes);
    const int64_t heads = rows % 8 == 0 && rows > 16 ? 8 : 1;
    q.resize(q_bytes / kElemBytes, 1.0F);
    o.resize(q.size());
    kv.resize(heads * kHeadDim, 1.0F);
    request.q = {DType::kFloat32, {1, heads, rows / heads, kHeadDim}, q.data()};
    request.k = {DType::kFloat32, {1, heads, 1, kHeadDim}, kv.data()};
    request.v = request.k;
  }
  Problem(const Problem&) = delete;

  std::vector<float> q;
  std::vector<float> o;  // where answers go
  std::vector<float> kv;
  AttentionRequest request;
};

// `address` as ServerProcess::Address has it.
absl::StatusOr<std::unique_ptr<Client>> ConnectToAttnd(const std::string& address) {
  ClientOptions options;
  const std::vector<std::string> parts = absl::StrSplit(address, ',');
  options.local_socket = parts.size() == 2 ? parts[1] : kNoLocalSocket;
  return Client::Connect(parts[0], options);
}

template <attnd::Transport kHow>
class AttndTransport : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Connect(const std::string& address) {
    auto client = ConnectToAttnd(address);
    if (!client.ok()) return client.status();
    return std::unique_ptr<Transport>(std::make_unique<AttndTransport>(*std::move(client)));
  }

  explicit AttndTransport(std::unique_ptr<Client> client) : client_(std::move(client)) {}

  void Prepare(int64_t bytes) override {
    problem_.reset();
    problem_ = std::make_unique<Problem>(bytes);
    problem_->request.transport = kHow;
    problem_->request.o_place = OutputView{problem_->o.data(), nullptr};
  }

  absl::Status Call(double* run_us) override {
    const auto result = client_->Attention(problem_->request);
    if (result.ok()) *run_us = static_cast<double>(result->timing.run_us);
    return result.status();
  }

  void StartCall(Done done) override {
    client_->AttentionAsync(
        problem_->request,
        [done = std::move(done)](const absl::StatusOr<AttentionResult>& r) { done(r.status()); });
  }

 private:
  std::unique_ptr<Problem> problem_;
  const std::unique_ptr<Client> client_;
};

// Q and O stay in one region, where the caller works on them.
class RegionTransport : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Connect(const std::string& address) {
    auto client = ConnectToAttnd(address);
    if (!client.ok()) return client.status();
    return std::unique_ptr<Transport>(std::make_unique<RegionTransport>(*std::move(client)));
  }

  explicit RegionTransport(std::unique_ptr<Client> client) : client_(std::move(client)) {}

  void Prepare(int64_t bytes) override { ready_ = Fill(bytes); }

  absl::Status Call(double* run_us) override {
    if (!ready_.ok()) return ready_;
    const auto result = client_->Attention(request_);
    if (result.ok()) *run_us = static_cast<double>(result->timing.run_us);
    return result.status();
  }

  void StartCall(Done done) override {
    client_->AttentionAsync(
        request_,
        [done = std::move(done)](const absl::StatusOr<AttentionResult>& r) { done(r.status()); });
  }

 private:
  absl::Status Fill(int64_t bytes) {
    const Problem problem(bytes);
    region_.reset();
    auto region = client_->NewRegion(2 * bytes + (1 << 20), absl::Seconds(30));
    if (!region.ok()) return region.status();
    region_ = *std::move(region);
    request_ = problem.request;
    for (TensorView* view : {&request_.q, &request_.k, &request_.v}) {
      const auto tensor = NewTensor(*region_, view->dtype, view->shape);
      if (!tensor.ok()) return tensor.status();
      std::memcpy(tensor->data, view->data, static_cast<size_t>(view->size_bytes()));
      *view = tensor->input();
    }
    const auto o = NewTensor(*region_, request_.q.dtype, request_.q.shape);
    if (o.ok()) request_.o_place = o->output();
    return o.status();
  }

  const std::unique_ptr<Client> client_;
  std::unique_ptr<LocalRegion> region_;
  AttentionRequest request_;
  absl::Status ready_;
};

absl::Status ToAbsl(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

class EchoTransport : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Connect(const std::string& address) {
    return std::unique_ptr<Transport>(std::make_unique<EchoTransport>(address));
  }

  explicit EchoTransport(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    stub_ = Echo::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  void Prepare(int64_t bytes) override { payload_.assign(static_cast<size_t>(bytes), 'x'); }

  // A caller has its tensor elsewhere: putting it into the message is part of the call.
  absl::Status Call(double*) override {
    grpc::ClientContext context;
    EchoMessage request;
    EchoMessage response;
    request.set_payload(payload_);
    return ToAbsl(stub_->Echo(&context, request, &response));
  }

  void StartCall(Done done) override {
    struct Running {
      grpc::ClientContext context;
      EchoMessage request;
      EchoMessage response;
    };
    auto* const running = new Running;
    running->request.set_payload(payload_);
    stub_->async()->Echo(&running->context, &running->request, &running->response,
                         [running, done = std::move(done)](const grpc::Status& status) {
                           delete running;
                           done(ToAbsl(status));
                         });
  }

 private:
  std::string payload_;
  std::unique_ptr<Echo::Stub> stub_;
};

class SocketTransport : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Connect(const std::string& address) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int port = 0;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) {
      to.sin_port = htons(static_cast<uint16_t>(port));
    }
    auto transport = std::make_unique<SocketTransport>(fd);
    const int on = 1;
    if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) {
      return absl::UnavailableError(absl::StrCat("cannot connect to ", address));
    }
    return std::unique_ptr<Transport>(std::move(transport));
  }

  explicit SocketTransport(int fd) : fd_(fd) {}
  ~SocketTransport() override { close(fd_); }

  void Prepare(int64_t bytes) override {
    payload_.assign(static_cast<size_t>(bytes), 1);
    answer_.assign(static_cast<size_t>(bytes), 0);
  }

  absl::Status Call(double*) override {
    const uint64_t size = payload_.size();
    if (WriteAll(fd_, &size, sizeof(size)) && WriteAll(fd_, payload_.data(), size) &&
        ReadAll(fd_, answer_.data(), size)) {
      return absl::OkStatus();
    }
    return absl::UnavailableError("the connection ended");
  }

  void StartCall(Done done) override { done(absl::UnimplementedError("socket: no small calls")); }

 private:
  const int fd_;
  std::vector<unsigned char> payload_;
  std::vector<unsigned char> answer_;
};

// What the same bytes cost within a process: one copy there, one back.
class MemcpyTransport : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Connect(const std::string&) {
    return std::unique_ptr<Transport>(std::make_unique<MemcpyTransport>());
  }

  void Prepare(int64_t bytes) override {
    here_.assign(static_cast<size_t>(bytes), 1);
    there_.assign(static_cast<size_t>(bytes), 2);
  }

  absl::Status Call(double*) override {
    std::memcpy(there_.data(), here_.data(), here_.size());
    asm volatile("" ::: "memory");  // both copies happen
    std::memcpy(here_.data(), there_.data(), here_.size());
    asm volatile("" ::: "memory");
    return absl::OkStatus();
  }

  void StartCall(Done done) override { done(absl::UnimplementedError("memcpy: no small calls")); }

 private:
  std::vector<unsigned char> here_;
  std::vector<unsigned char> there_;
};

// Calls come whether those before have ended or not, so that one that waits does not hide others
// that would have waited too.
constexpr std::chrono::milliseconds kSmallCallInterval(4);

class SmallCallTimes {
 public:
  void Begin() {
    MutexLock lock(mutex_);
    ++running_;
  }

  void End(Clock::duration took, const absl::Status& status) {
    MutexLock lock(mutex_);
    times_us_.push_back(std::chrono::duration<double, std::micro>(took).count());
    status_.Update(status);
    if (--running_ == 0) none_running_.NotifyAll();
  }

  // When all have ended.
  absl::StatusOr<double> MedianUs() {
    MutexLock lock(mutex_);
    while (running_ > 0) none_running_.Wait(mutex_);
    if (!status_.ok()) return status_;
    const auto middle = times_us_.begin() + static_cast<ptrdiff_t>(times_us_.size() / 2);
    std::nth_element(times_us_.begin(), middle, times_us_.end());
    return *middle;
  }

 private:
  Mutex mutex_;
  CondVar none_running_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<double> times_us_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

const std::vector<TransportEntry>& Transports() {
  static const std::vector<TransportEntry> entries = {
      {"unary", Peer::kAttnd, true, true, &AttndTransport<attnd::Transport::kUnary>::Connect},
      {"stream", Peer::kAttnd, true, true, &AttndTransport<attnd::Transport::kStream>::Connect},
      {"region", Peer::kAttnd, true, true, &RegionTransport::Connect},
      {"region_copied", Peer::kAttnd, true, true,
       &AttndTransport<attnd::Transport::kRegion>::Connect},
      {"proto_echo", Peer::kSyncEcho, true, false, &EchoTransport::Connect},
      {"raw_echo", Peer::kRawEcho, true, true, &ConnectToRawEcho},
      {"socket", Peer::kSocket, true, false, &SocketTransport::Connect},
      {"memcpy", Peer::kNone, true, false, &MemcpyTransport::Connect},
      {"callback_echo", Peer::kCallbackEcho, false, false, &EchoTransport::Connect},
  };
  return entries;
}

const TransportEntry* FindTransport(const std::string& name) {
  for (const TransportEntry& entry : Transports()) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

absl::StatusOr<double> SmallBesideBulkUs(const std::string& address, int64_t bulk_bytes,
                                         bool one_channel, absl::Duration duration) {
  ClientOptions options;
  if (one_channel) options.bulk_bytes = INT64_MAX;
  options.local_socket = kNoLocalSocket;  // the bytes are to go over the connections
  auto connected = Client::Connect(address.substr(0, address.find(',')), options);
  if (!connected.ok()) return connected.status();
  const std::unique_ptr<Client> client = *std::move(connected);
  const Problem small(kSmallBytes);
  const Problem bulk(bulk_bytes);
  absl::Status status = client->Attention(small.request).status();
  if (!status.ok()) return status;
  std::atomic<bool> stop{false};
  absl::Status bulk_status;
  std::thread bulk_caller([&] {
    while (bulk_bytes > 0 && !stop && bulk_status.ok()) {
      bulk_status = client->Attention(bulk.request).status();
    }
  });
  SmallCallTimes times;
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end = begin + absl::ToChronoNanoseconds(duration);
  for (Clock::time_point due = begin; due < end; due += kSmallCallInterval) {
    std::this_thread::sleep_until(due);
    times.Begin();
    client->AttentionAsync(small.request, [&times, due](absl::StatusOr<AttentionResult> result) {
      times.End(Clock::now() - due, result.status());
    });
  }
  const absl::StatusOr<double> median_us = times.MedianUs();
  stop = true;
  bulk_caller.join();
  return bulk_status.ok() ? median_us : bulk_status;
}

}  // namespace attnd::bench
