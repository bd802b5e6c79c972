#include "client/health.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/status.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace attnd::client {
namespace {

using ::google::protobuf::internal::WireFormatLite;

// message HealthCheckResponse { ServingStatus status = 1; }
bool ReadServingStatus(grpc::ByteBuffer* message, uint32_t* status) {
  *status = 0;  // UNKNOWN
  grpc::ProtoBufferReader reader(message);
  google::protobuf::io::CodedInputStream in(&reader);
  while (const uint32_t tag = in.ReadTag()) {
    const bool good = tag == WireFormatLite::MakeTag(1, WireFormatLite::WIRETYPE_VARINT)
                          ? in.ReadVarint32(status)
                          : WireFormatLite::SkipField(&in, tag);
    if (!good) return false;
  }
  return in.ConsumedEntireMessage();
}

const char* ServingStatusName(uint32_t status) {
  constexpr const char* kNames[] = {"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"};
  return status < 4 ? kNames[status] : "a status that is not in grpc.health.v1";
}

// HealthCheckRequest with an empty service name: no bytes at all.
grpc::Status CallCheck(std::shared_ptr<grpc::Channel> channel, absl::Duration timeout,
                       grpc::ByteBuffer* answer) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::GenericStub stub(std::move(channel));
  grpc::CompletionQueue queue;
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(answer, &status, nullptr);
  queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {
  }
  return status;
}

}  // namespace

absl::Status CheckHealth(std::shared_ptr<grpc::Channel> channel, absl::Duration timeout) {
  grpc::ByteBuffer answer;
  const grpc::Status status = CallCheck(std::move(channel), timeout, &answer);
  if (!status.ok()) return ToAbsl(status);
  uint32_t serving = 0;
  if (!ReadServingStatus(&answer, &serving)) {
    return absl::InternalError("health: the answer is not a grpc.health.v1.HealthCheckResponse");
  }
  if (serving == 1) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("health: the server reports ", ServingStatusName(serving)));
}

}  // namespace attnd::client
