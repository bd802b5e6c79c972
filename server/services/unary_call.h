// One call of a unary method.
#ifndef ATTND_SERVER_SERVICES_UNARY_CALL_H_
#define ATTND_SERVER_SERVICES_UNARY_CALL_H_

#include <memory>
#include <utility>

#include "server/services/compute_call.h"
#include "server/wire/kserve.h"

namespace attnd::server {

// One message, then the caller's end; one message back. For the end of a caller whose message is
// small nobody waits: that is a read more, and its event.
class UnaryCall : public ComputeCall {
 protected:
  UnaryCall(const ComputeParts& parts, std::unique_ptr<RawStream> stream)
      : ComputeCall(parts, std::move(stream)) {}

  // What tells one method from another: its messages. The type of the request's, ...
  virtual const char* message_name() const = 0;
  // ... its bytes to a request, as wire::Decode, perhaps more than once; RESOURCE_EXHAUSTED, as for
  // want of room, if it would copy more than `max_shared_bytes` from the caller's memory, ...
  virtual absl::StatusOr<std::unique_ptr<Request>> DecodeMessage(
      absl::Span<const wire::ByteSpan> message, TimePoint arrival, int64_t max_shared_bytes) = 0;
  // ... and the answer to its bytes: what `answer` still has is sent between the pieces.
  virtual wire::EncodedAnswer EncodeAnswer(const Request& request, Answer& answer) = 0;

  // What it copies beside its messages. From the caller's memory, as far as it is known yet; to
  // it, once the answer is encoded; and the doing, before the answer is sent.
  virtual int64_t shared_input_bytes() const { return 0; }
  virtual int64_t shared_output_bytes() const { return 0; }
  virtual absl::Status PlaceOutputs() { return absl::OkStatus(); }

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
  absl::StatusOr<std::unique_ptr<Request>> DecodeOnce(int64_t max_shared_bytes);
  void Decoded(absl::StatusOr<std::unique_ptr<Request>> request);
  void Send();

  bool has_message_ = false;
  TimePoint arrival_{};
  grpc::ByteBuffer request_;
};

// Of attnd.v1's Compute.
class V1UnaryCall final : public UnaryCall {
 public:
  V1UnaryCall(const ComputeParts& parts, std::unique_ptr<RawStream> stream)
      : UnaryCall(parts, std::move(stream)) {}

 private:
  const char* message_name() const override { return "ComputeRequest"; }
  absl::StatusOr<std::unique_ptr<Request>> DecodeMessage(absl::Span<const wire::ByteSpan> message,
                                                         TimePoint arrival,
                                                         int64_t max_shared_bytes) override;
  wire::EncodedAnswer EncodeAnswer(const Request& request, Answer& answer) override;
};

// Of the Open Inference Protocol's ModelInfer.
class KserveUnaryCall final : public UnaryCall {
 public:
  KserveUnaryCall(const ComputeParts& parts, std::unique_ptr<RawStream> stream)
      : UnaryCall(parts, std::move(stream)),
        inference_(ShmOf(parts.shm, context().peer(), context().client_metadata(), parts.tenants)) {
  }

 private:
  const char* message_name() const override { return "ModelInferRequest"; }
  absl::StatusOr<std::unique_ptr<Request>> DecodeMessage(absl::Span<const wire::ByteSpan> message,
                                                         TimePoint arrival,
                                                         int64_t max_shared_bytes) override;
  wire::EncodedAnswer EncodeAnswer(const Request& request, Answer& answer) override;
  int64_t shared_input_bytes() const override { return inference_.shared_input_bytes(); }
  int64_t shared_output_bytes() const override { return shared_outputs_.size_bytes(); }
  absl::Status PlaceOutputs() override;

  wire::Inference inference_;
  wire::Inference::SharedOutputs shared_outputs_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_UNARY_CALL_H_
