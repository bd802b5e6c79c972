#include "server/probe.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

constexpr std::chrono::seconds kTimeout(2);
constexpr char kCheckMethod[] = "/grpc.health.v1.Health/Check";
// HealthCheckResponse {status = SERVING}, the only field that there is.
constexpr char kServing[] = "\x08\x01";

}  // namespace

absl::Status Probe(ListenAddress address) {
  if (address.host == "0.0.0.0") address.host = "127.0.0.1";
  if (address.host == "::") address.host = "::1";
  grpc::GenericStub stub(
      grpc::CreateChannel(address.ToString(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);  // HealthCheckRequest of the whole server
  grpc::ByteBuffer response;
  grpc::Status status;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(&context, kCheckMethod, request, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) {
    return absl::UnavailableError(
        absl::StrCat(address.ToString(), " does not answer: ", status.error_message()));
  }
  grpc::Slice bytes;
  if (!response.DumpToSingleSlice(&bytes).ok() ||
      std::string(bytes.begin(), bytes.end()) != kServing) {
    return absl::UnavailableError(absl::StrCat(address.ToString(), " is not serving"));
  }
  return absl::OkStatus();
}

}  // namespace attnd::server
