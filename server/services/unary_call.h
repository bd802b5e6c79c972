// One call of Compute.
#ifndef ATTND_SERVER_SERVICES_UNARY_CALL_H_
#define ATTND_SERVER_SERVICES_UNARY_CALL_H_

#include <memory>

#include "server/services/compute_call.h"

namespace attnd::server {

// One message, then the caller's end; one message back. For the end of a caller whose message is
// small nobody waits: that is a read more, and its event.
class UnaryCall final : public ComputeCall {
 public:
  UnaryCall(const ComputeParts& parts, grpc::GenericCallbackServerContext* context)
      : ComputeCall(parts, context) {}

 private:
  void OnMessage() override;
  void OnCallerClosed() override;
  // The request is in message_.
  void Received();
  void SendAnswer(const Request& request, Answer answer) override;
  const char* transport() const override { return "unary"; }
  void Drop() override { request_.Clear(); }

  // On a decoder: waits for room in the pool.
  void Decode();
  // RESOURCE_EXHAUSTED without a pushback if there is no room now.
  absl::StatusOr<std::unique_ptr<Request>> DecodeOnce();
  void Decoded(absl::StatusOr<std::unique_ptr<Request>> request);
  void Send();

  bool has_message_ = false;
  TimePoint arrival_{};
  grpc::ByteBuffer request_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_UNARY_CALL_H_
