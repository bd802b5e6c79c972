#include "server/services/raw_call.h"

#include <grpc/grpc.h>

#include <utility>

#include "server/grpc_order.h"

namespace attnd::server {

void RawStream::Over::Complete(bool) {
  RawCall* of = nullptr;
  {
    MutexLock lock(stream.mutex_);
    has_come = true;
    of = call;
    if (of == nullptr) return;  // Begun sees to it
    PassBaton(of);
    of->BeOver();
  }
  of->Release();
}

void RawCall::Reaction::Complete(bool ok) {
  RawCall* const of = call;
  PassBaton(of);
  {
    MutexLock lock(of->stream_->mutex());
    (of->*react)(ok);
  }
  of->Release();
}

RawCall::RawCall(std::unique_ptr<RawStream> stream) : stream_(std::move(stream)) {
  stream_->over_.call = this;
  over_before_ = stream_->over_.has_come;
}

void RawCall::Begun() {
  if (over_before_) {
    BeOver();
    Release();
  }
  PassBaton(this);
  Release();
}

void* RawCall::TagOf(Reaction& reaction) {
  PassBaton(this);
  return reaction.NewTag();
}

void RawCall::StartRead(grpc::ByteBuffer* message) {
  ++under_way_;
  stream_->operations().Read(message, TagOf(read_));
}

void RawCall::StartWrite(grpc::ByteBuffer message) {
  ++under_way_;
  stream_->operations().Write(message, TagOf(written_));
}

void RawCall::StartWriteAndFinish(grpc::ByteBuffer message, const grpc::Status& status) {
  stream_->operations().WriteAndFinish(message, grpc::WriteOptions(), status, TagOf(finished_));
}

void RawCall::Finish(const grpc::Status& status) {
  stream_->operations().Finish(status, TagOf(finished_));
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
}

void RawCall::Release() {
  PassBaton(this);
  if (--under_way_ == 0) OnDone();
}

}  // namespace attnd::server
