#include "server/services/raw_call.h"

#include <grpc/grpc.h>

#include <utility>

#include "server/grpc_order.h"

namespace attnd::server {

void RawStream::Over::Complete(bool) {
  PassBaton(call);
  call->BeOver();
}

void RawCall::Reaction::Complete(bool ok) {
  RawCall* const of = call;
  PassBaton(of);
  (of->*react)(ok);
  of->Release();
}

RawCall::RawCall(std::unique_ptr<RawStream> stream) : stream_(std::move(stream)) {
  stream_->over_.call = this;
}

void RawCall::Begun() {
  PassBaton(this);
  Release();
}

void RawCall::StartRead(grpc::ByteBuffer* message) {
  ++under_way_;
  PassBaton(this);
  stream_->operations().Read(message, static_cast<Completion*>(&read_));
}

void RawCall::StartWrite(grpc::ByteBuffer message) {
  ++under_way_;
  PassBaton(this);
  stream_->operations().Write(message, static_cast<Completion*>(&written_));
}

void RawCall::StartWriteAndFinish(grpc::ByteBuffer message, const grpc::Status& status) {
  PassBaton(this);
  stream_->operations().WriteAndFinish(message, grpc::WriteOptions(), status,
                                       static_cast<Completion*>(&finished_));
}

void RawCall::Finish(const grpc::Status& status) {
  PassBaton(this);
  stream_->operations().Finish(status, static_cast<Completion*>(&finished_));
}

void RawCall::ReadDone(bool ok) {
  // The word that it is over may stand behind this one.
  if (!ok && grpc_call_failed_before_recv_message(context().c_call()) != 0) cancelled_ = true;
  OnReadDone(ok);
}

void RawCall::BeOver() {
  if (context().IsCancelled()) {
    cancelled_ = true;
    OnCancel();
  }
  Release();
}

void RawCall::Release() {
  PassBaton(this);
  if (--under_way_ == 0) OnDone();
}

}  // namespace attnd::server
