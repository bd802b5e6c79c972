// Asks a server for causal attention over random tensors, and looks at a row whose answer is known.
//
//   attention [HOST:PORT]      default: 127.0.0.1:7070
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "client/client.h"

namespace {

std::vector<float> Random(size_t count, unsigned seed) {
  std::minstd_rand random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<int64_t> shape = {1, 8, 512, 64};  // batch, heads, length, head_dim
  constexpr size_t kCount = 8 * 512 * 64;
  const std::vector<float> q = Random(kCount, 1), k = Random(kCount, 2), v = Random(kCount, 3);

  const auto client = attnd::Client::Connect(argc > 1 ? argv[1] : "127.0.0.1:7070");
  if (!client.ok()) {
    std::fprintf(stderr, "attention: %s\n", client.status().ToString().c_str());
    return 1;
  }
  attnd::AttentionRequest request;
  request.q = {attnd::DType::kFloat32, shape, q.data()};
  request.k = {attnd::DType::kFloat32, shape, k.data()};
  request.v = {attnd::DType::kFloat32, shape, v.data()};
  request.causal = attnd::Causal::kBottomRight;
  request.timeout = absl::Seconds(30);
  const absl::StatusOr<attnd::AttentionResult> result = (*client)->Attention(request);
  if (!result.ok()) {
    std::fprintf(stderr, "attention: %s\n", result.status().ToString().c_str());
    return 1;
  }

  // The first row of each head sees one key: its answer is that key's V.
  std::vector<float> o(kCount);
  std::memcpy(o.data(), result->o.bytes.data(), kCount * sizeof(float));
  float off = 0;
  for (size_t head = 0; head < 8; ++head) {
    for (size_t i = head * 512 * 64; i < head * 512 * 64 + 64; ++i) {
      off = std::fmax(off, std::fabs(o[i] - v[i]));
    }
  }
  std::printf("%s on %s by %s, %lld us of kernel; first rows are off by %g\n",
              result->kernel.c_str(), result->device.c_str(), TransportName(result->transport),
              static_cast<long long>(result->timing.run_us), static_cast<double>(off));
  return off == 0 ? 0 : 1;
}
