// What tests of how calls end have in common.
#ifndef ATTND_TESTS_CLIENT_HOLDING_SERVER_H_
#define ATTND_TESTS_CLIENT_HOLDING_SERVER_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "client/client.h"
#include "tests/client/fake_server.h"

namespace attnd::testing {

// Far beyond what any of these calls should take, far below what a hang would. Where a client and a
// synchronous server share a busy process, as here, gRPC 1.51's poller now and then rests for 10 s.
inline constexpr absl::Duration kAtOnce = absl::Seconds(30);

// Memory of its own for each call, so that a late reader is seen.
struct OwnedRequest {
  explicit OwnedRequest(int64_t bytes) : data(new float[bytes / 4]()) {
    request.q = {DType::kFloat32, {1, 1, bytes / 256, 64}, data.get()};
    request.k = request.v = {DType::kFloat32, {1, 1, 1, 64}, data.get()};
  }
  std::unique_ptr<float[]> data;
  AttentionRequest request;
};

// A server whose calls wait until they are cancelled, or let go.
class HoldingServer {
 public:
  HoldingServer()
      : server_([this](grpc::ServerContext* context, const v1::ComputeRequest& request,
                       v1::ComputeResponse* response) {
          ++held_;
          while (!context->IsCancelled() && !released_) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          return Echo(request, response);
        }) {}
  ~HoldingServer() { Release(); }

  void Release() { released_ = true; }
  void WaitForCalls(int count) const {
    while (held_ < count) std::this_thread::yield();
  }
  FakeServer& server() { return server_; }

 private:
  std::atomic<int> held_{0};
  std::atomic<bool> released_{false};
  FakeServer server_;
};

}  // namespace attnd::testing

#endif  // ATTND_TESTS_CLIENT_HOLDING_SERVER_H_
