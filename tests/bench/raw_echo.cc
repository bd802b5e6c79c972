#include "tests/bench/raw_echo.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server_builder.h>

#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "kernels/sync.h"

namespace attnd::bench {
namespace {

constexpr char kMethod[] = "/attnd.bench.RawEcho/Echo";

// `memory` is long enough.
void CopyOut(const grpc::ByteBuffer& message, unsigned char* memory) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return;
  for (const grpc::Slice& slice : slices) {
    std::memcpy(memory, slice.begin(), slice.size());
    memory += slice.size();
  }
}

// Without a copy; the bytes outlive the call.
grpc::ByteBuffer Lend(absl::Span<unsigned char> bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size(), [](void*) {});
  return {&slice, 1};
}

class EchoCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit EchoCall(std::vector<unsigned char>& memory) : memory_(memory) { StartRead(&message_); }

  void OnReadDone(bool ok) override {
    if (!ok) return StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
    const size_t size = message_.Length();
    if (memory_.size() < size) memory_.resize(size);
    CopyOut(message_, memory_.data());
    message_ = Lend({memory_.data(), size});
    StartRead(&nothing_);
  }
  void OnDone() override { delete this; }

 private:
  std::vector<unsigned char>& memory_;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer nothing_;
};

class EchoService final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new EchoCall(memory_);
  }

 private:
  std::vector<unsigned char> memory_;
};

class RawEchoTransport final : public Transport {
 public:
  explicit RawEchoTransport(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  void Prepare(int64_t bytes) override {
    payload_.assign(static_cast<size_t>(bytes), 1);
    answer_.assign(static_cast<size_t>(bytes), 0);
  }

  absl::Status Call(double*) override {
    grpc::ClientContext context;
    const grpc::ByteBuffer request = Lend(absl::MakeSpan(payload_));
    grpc::ByteBuffer response;
    Mutex mutex;
    CondVar done;
    bool is_done = false;
    grpc::Status status;
    stub_->UnaryCall(&context, kMethod, grpc::StubOptions(), &request, &response,
                     [&](const grpc::Status& end) {
                       if (end.ok() && response.Length() == answer_.size()) {
                         CopyOut(response, answer_.data());
                       }
                       MutexLock lock(mutex);
                       status = end;
                       is_done = true;
                       done.NotifyOne();
                     });
    MutexLock lock(mutex);
    while (!is_done) done.Wait(mutex);
    if (!status.ok()) {
      return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
    }
    if (response.Length() == answer_.size()) return absl::OkStatus();
    return absl::InternalError("raw_echo: the answer has another size");
  }

  void StartCall(std::function<void(const absl::Status&)> done) override {
    done(absl::UnimplementedError("raw_echo: no small calls"));
  }

 private:
  std::vector<unsigned char> payload_;
  std::vector<unsigned char> answer_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

}  // namespace

std::unique_ptr<grpc::Server> ServeRawEcho(int* port) {
  static EchoService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), port);
  builder.RegisterCallbackGenericService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  return builder.BuildAndStart();
}

absl::StatusOr<std::unique_ptr<Transport>> ConnectToRawEcho(const std::string& address) {
  return std::unique_ptr<Transport>(std::make_unique<RawEchoTransport>(address));
}

}  // namespace attnd::bench
