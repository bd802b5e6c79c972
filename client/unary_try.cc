// Tries that are one message each way.
#include <utility>

#include "client/hand_over.h"
#include "client/polled_queue.h"
#include "client/status.h"
#include "client/try.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/client_callback.h"

namespace attnd::client {
namespace {

constexpr char kMethod[] = "/attnd.v1.AttentionService/Compute";

class UnaryTry final : public Try, public grpc::ClientUnaryReactor {
 public:
  UnaryTry(const std::shared_ptr<GrpcContext>& context, End end, const grpc::ByteBuffer& message)
      : Try(context, std::move(end)), grpc_(*context), message_(message) {}

  void Run() override {
    grpc::GenericStub stub(grpc_.channel());
    stub.PrepareUnaryCall(&grpc_.grpc(), kMethod, grpc::StubOptions(), &message_, &answer_, this);
    ReleaseToGrpc(this);
    StartCall();
  }

  void OnDone(const grpc::Status& status) override {
    AcquireFromGrpc(this);
    Done(ToAbsl(status));
  }

  Answer TakeAnswer() override { return {answer_, nullptr}; }

 private:
  GrpcContext& grpc_;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer answer_;
};

class PolledUnaryTry final : public PolledTry {
 public:
  PolledUnaryTry(const std::shared_ptr<GrpcContext>& context, End end,
                 const grpc::ByteBuffer& message, absl::Duration busy_poll)
      : PolledTry(context, std::move(end)), grpc_(*context), message_(message), queue_(busy_poll) {}

  void Run() override {
    grpc::GenericStub stub(grpc_.channel());
    reader_ = stub.PrepareUnaryCall(&grpc_.grpc(), kMethod, message_, queue_.grpc());
    reader_->StartCall();
    reader_->Finish(&answer_, &status_, this);
  }

  bool Poll(std::chrono::steady_clock::time_point until) override {
    if (!queue_.WaitForNext(until)) return false;
    queue_.Drain();
    reader_.reset();
    Done(ToAbsl(status_));
    return true;
  }

  Answer TakeAnswer() override { return {answer_, nullptr}; }

 private:
  GrpcContext& grpc_;
  grpc::ByteBuffer message_;
  PolledQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader_;
  grpc::ByteBuffer answer_;
  grpc::Status status_;
};

}  // namespace

std::unique_ptr<Try> NewUnaryTry(const std::shared_ptr<GrpcContext>& context, Try::End end,
                                 const grpc::ByteBuffer& message) {
  return std::make_unique<UnaryTry>(context, std::move(end), message);
}

std::unique_ptr<PolledTry> NewPolledUnaryTry(const std::shared_ptr<GrpcContext>& context,
                                             Try::End end, const grpc::ByteBuffer& message,
                                             absl::Duration busy_poll) {
  return std::make_unique<PolledUnaryTry>(context, std::move(end), message, busy_poll);
}

}  // namespace attnd::client
