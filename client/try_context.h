// What a try shares with the call that it is of: how to cancel it, and what the server said.
#ifndef ATTND_CLIENT_TRY_CONTEXT_H_
#define ATTND_CLIENT_TRY_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/types/optional.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace attnd::client {

// Of a try that has ended.
struct ServerWord {
  bool from_server = false;  // an attnd has said how it ended
  // When the call is to be tried again; negative: never. Absent: it said nothing of that.
  absl::optional<int64_t> pushback_ms;
  bool untouched = false;  // it has computed nothing, and holds none of the call's regions
};

class TryContext {
 public:
  virtual ~TryContext() = default;
  // The try ends soon, if it has not ended. Any thread, at any time.
  virtual void Cancel() = 0;
  // After the end.
  virtual ServerWord word() const = 0;
};

// Of a call of gRPC's on one of the client's channels.
class GrpcContext final : public TryContext {
 public:
  explicit GrpcContext(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}

  void Cancel() override { grpc_.TryCancel(); }
  ServerWord word() const override;

  grpc::ClientContext& grpc() { return grpc_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext grpc_;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_TRY_CONTEXT_H_
