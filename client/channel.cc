#include "client/channel.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace attnd::client {
namespace {

bool IsLocal(absl::string_view address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "127.") || absl::StartsWith(address, "[::1]:");
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // an answer is as large as its request's Q
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // or two channels share a connection
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);             // retry.h decides, alone
  // As soon as gRPC allows, so that a retry finds a server that has just come back.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // The timeout is TCP_USER_TIMEOUT too, which is what it is here for: pings this rare bother no
  // server (gRPC's default allows one in 5 minutes).
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10 * 60 * 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(kStalledTimeout)));
  // A proxy that the environment names does not lead to this machine.
  if (IsLocal(address)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

absl::Status CheckAddress(const std::string& address) {
  const absl::string_view view = address;
  if (absl::StartsWith(view, "unix:") && view.size() > 5) return absl::OkStatus();
  const size_t colon = view.rfind(':');
  int port = 0;
  const bool has_port = colon != absl::string_view::npos && colon > 0 &&
                        absl::SimpleAtoi(view.substr(colon + 1), &port) && port > 0 &&
                        port <= 65535;
  const absl::string_view host = has_port ? view.substr(0, colon) : "";
  const bool bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (has_port && (bracketed || !absl::StrContains(host, ":"))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("address \"", address, "\" is neither host:port nor unix:/path"));
}

Channels::Channels(const std::string& address)
    : control(MakeChannel(address)), bulk(MakeChannel(address)) {}

}  // namespace attnd::client
