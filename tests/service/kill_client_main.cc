// A client for tests to kill: calls one way for ever, and writes a byte to standard output when its
// first call has ended.
//
//   kill_client ADDRESS SOCKET_PATH unary|stream|region|in_place
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "client/client.h"

namespace {

constexpr int64_t kRows = 8192;  // 2 MB of Q

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "kill_client: %s\n", status.ToString().c_str());
  return 1;
}

// Moves the tensors to the region, and gives O a place there.
absl::Status MoveTo(attnd::LocalRegion& region, attnd::AttentionRequest& request) {
  for (attnd::TensorView* view : {&request.q, &request.k, &request.v}) {
    const auto tensor = attnd::NewTensor(region, view->dtype, view->shape);
    if (!tensor.ok()) return tensor.status();
    std::memcpy(tensor->data, view->data, static_cast<size_t>(view->size_bytes()));
    *view = tensor->input();
  }
  const auto o = attnd::NewTensor(region, request.q.dtype, request.q.shape);
  if (o.ok()) request.o_place = o->output();
  return o.status();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: kill_client ADDRESS SOCKET_PATH unary|stream|region|in_place\n");
    return 2;
  }
  const std::string way = argv[3];
  attnd::ClientOptions options;
  options.local_socket = argv[2];
  const auto client = attnd::Client::Connect(argv[1], options);
  if (!client.ok()) return Fail(client.status());
  const std::vector<float> values(kRows * 64, 0.5F);
  attnd::AttentionRequest request;
  request.q = {attnd::DType::kFloat32, {1, 2, kRows / 2, 64}, values.data()};
  request.k = request.v = {attnd::DType::kFloat32, {1, 2, 8, 64}, values.data()};
  request.transport = way == "unary"    ? attnd::Transport::kUnary
                      : way == "stream" ? attnd::Transport::kStream
                                        : attnd::Transport::kRegion;
  std::unique_ptr<attnd::LocalRegion> region;
  if (way == "in_place") {
    auto made = (*client)->NewRegion(8 << 20, absl::Seconds(60));
    if (!made.ok()) return Fail(made.status());
    region = *std::move(made);
    if (absl::Status status = MoveTo(*region, request); !status.ok()) return Fail(status);
  }
  for (bool is_first = true;; is_first = false) {
    const auto result = (*client)->Attention(request);
    if (!result.ok()) return Fail(result.status());
    if (is_first && write(STDOUT_FILENO, "!", 1) != 1) return 1;
  }
}
