// A client of another process' server on one GPU, for cuda_ipc_test to run: says what went wrong on
// standard output, and leaves with 1 then.
//
//   cuda_ipc_client ADDRESS SOCKET malloc|vmm bits|event|die|size|refused|gpu
//
//   bits      answers have the bits of unary calls, whatever the shape
//   event     the same, where the inputs come while the call waits for their event
//   die       ends in the middle of a call, with 9
//   size      a client that says it has more than it has
//   refused   the server takes no such memory
//   gpu       memory of a GPU that the server does not have
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "tests/gpu/cuda_client.h"

namespace attnd::testing {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr int64_t kMemoryBytes = int64_t{512} << 20;

struct Shape {
  DType dtype = DType::kBFloat16;
  Layout layout = Layout::kBHSD;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t len = 1000;
  int64_t head_dim = 128;
  Causal causal = Causal::kNone;
  bool want_lse = false;
};

// Odd head_dims have rows that no kernel takes as they are, odd offsets likewise.
const Shape kShapes[] = {
    {},
    {.causal = Causal::kBottomRight, .want_lse = true},
    {.dtype = DType::kFloat16, .layout = Layout::kBSHD, .head_dim = 64},
    {.dtype = DType::kFloat32, .want_lse = true},
    {.layout = Layout::kBSHD, .len = 77, .head_dim = 127, .want_lse = true},
    {.len = 4096, .head_dim = 100, .causal = Causal::kTopLeft},
    {.heads = 16, .kv_heads = 16, .len = 4096, .causal = Causal::kBottomRight},
};

std::vector<int64_t> Extents(const Shape& s, int64_t heads) {
  if (s.layout == Layout::kBSHD) return {1, s.len, heads, s.head_dim};
  return {1, heads, s.len, s.head_dim};
}

// Finite numbers of any dtype: the low bits of an exponent are as good as random there.
std::vector<unsigned char> RandomBytes(const TensorView& view, uint32_t seed) {
  std::vector<unsigned char> bytes(static_cast<size_t>(view.size_bytes()));
  std::minstd_rand random(seed);
  const auto step = static_cast<size_t>(SizeBytes(view.dtype));
  for (size_t i = 0; i < bytes.size(); i += step) {
    for (size_t b = 0; b < step; ++b) bytes[i + b] = static_cast<unsigned char>(random() >> 8);
    // Sign and exponent: about 1/8 to 2 in each dtype.
    bytes[i + step - 1] = static_cast<unsigned char>((random() & 0x80) | 0x3e);
    if (view.dtype == DType::kFloat16) bytes[i + 1] &= 0xbd;
  }
  return bytes;
}

// A problem in host memory, and where its tensors are on the GPU.
struct Problem {
  explicit Problem(const Shape& shape) : shape(shape) {
    inline_request.layout = shape.layout;
    inline_request.causal = shape.causal;
    inline_request.want_lse = shape.want_lse;
    inline_request.transport = Transport::kUnary;
    inline_request.timeout = kTimeout;
    TensorView* const views[] = {&inline_request.q, &inline_request.k, &inline_request.v};
    for (uint32_t i = 0; i < 3; ++i) {
      *views[i] = {shape.dtype, Extents(shape, i == 0 ? shape.heads : shape.kv_heads)};
      bytes[i] = RandomBytes(*views[i], i + 1);
      views[i]->data = bytes[i].data();
    }
  }

  // With an element left free before it, so that nothing is aligned but to elements.
  absl::Status PlaceIn(LocalRegion& region, bool odd) {
    placed = inline_request;
    placed.transport = Transport::kAuto;
    const int64_t gap_bytes = odd ? SizeBytes(shape.dtype) : 0;
    const auto place = [&](int64_t size_bytes) -> absl::StatusOr<unsigned char*> {
      auto at = region.Allocate(size_bytes + gap_bytes);
      if (!at.ok()) return at;
      return *at + gap_bytes;
    };
    for (TensorView* view : {&placed.q, &placed.k, &placed.v}) {
      const auto at = place(view->size_bytes());
      if (!at.ok()) return at.status();
      view->data = *at;
      view->region = &region;
    }
    const auto o = place(placed.q.size_bytes());
    if (!o.ok()) return o.status();
    placed.o_place = OutputView{*o, &region};
    if (!shape.want_lse) return absl::OkStatus();
    const auto lse = region.Allocate(shape.heads * shape.len * 4);
    if (!lse.ok()) return lse.status();
    placed.lse_place = OutputView{*lse, &region};
    return absl::OkStatus();
  }

  Shape shape;
  std::vector<unsigned char> bytes[3];
  AttentionRequest inline_request;
  AttentionRequest placed;
};

class Test {
 public:
  Test(const std::string& address, const std::string& socket, CudaKind kind) : kind_(kind) {
    ClientOptions options;
    options.local_socket = socket;
    client_ = *Client::Connect(address, options);
  }

  absl::Status Run(const std::string& mode) {
    auto allocation = CudaAllocation::New(kind_, kMemoryBytes, OrdinalFor(mode));
    if (!allocation.ok()) return allocation.status();
    memory_ = *std::move(allocation);
    if (mode == "bits") return Bits();
    if (mode == "event") return Event();
    if (mode == "die") return Die();
    if (mode == "size") return Size();
    if (mode == "refused") return Refusal(memory_->exported(), "--allow_cuda_ipc");
    if (mode == "gpu") return OtherGpu();
    return absl::InvalidArgumentError("unknown mode");
  }

 private:
  static int OrdinalFor(const std::string& mode) {
    return mode == "gpu" && CountGpus() > 1 ? 1 : 0;
  }

  absl::Status Bits() {
    const auto region = client_->ShareCudaMemory(memory_->exported(), kTimeout);
    if (!region.ok()) return region.status();
    bool odd = false;
    for (const Shape& shape : kShapes) {
      Problem problem(shape);
      absl::Status status = problem.PlaceIn(**region, odd);
      odd = !odd;
      TensorView* const views[] = {&problem.placed.q, &problem.placed.k, &problem.placed.v};
      for (int i = 0; i < 3; ++i) {
        status.Update(memory_->CopyIn(const_cast<void*>(views[i]->data), problem.bytes[i].data(),
                                      views[i]->size_bytes()));
      }
      if (status.ok()) status = Compare(problem, client_->Attention(problem.placed));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // The bits of a unary call are where the answer was to go.
  absl::Status Compare(const Problem& problem, const absl::StatusOr<AttentionResult>& result) {
    if (!result.ok()) return result.status();
    if (result->transport != Transport::kRegion) return absl::InternalError("it was no region");
    const auto expected = client_->Attention(problem.inline_request);
    if (!expected.ok()) return expected.status();
    std::vector<unsigned char> got(expected->o.bytes.size());
    absl::Status status = memory_->CopyOut(got.data(), problem.placed.o_place->data,
                                           static_cast<int64_t>(got.size()));
    if (!status.ok()) return status;
    if (got != expected->o.bytes) return Differs(problem, "O");
    if (!expected->lse) return absl::OkStatus();
    got.resize(expected->lse->bytes.size());
    status = memory_->CopyOut(got.data(), problem.placed.lse_place->data,
                              static_cast<int64_t>(got.size()));
    if (!status.ok()) return status;
    return got == expected->lse->bytes ? absl::OkStatus() : Differs(problem, "LSE");
  }
  static absl::Status Differs(const Problem& problem, const char* what) {
    return absl::InternalError(absl::StrCat(what, " has other bits than the unary call's: len ",
                                            problem.shape.len, ", head_dim ",
                                            problem.shape.head_dim));
  }

  // Q comes only when the call is under way, most likely: a kernel that did not wait would see
  // zeros.
  absl::Status Event() {
    CudaMemory exported = memory_->exported();
    const auto event = memory_->ExportEvent();
    if (!event.ok()) return event.status();
    exported.event = *event;
    const auto region = client_->ShareCudaMemory(exported, kTimeout);
    if (!region.ok()) return region.status();
    Problem problem(kShapes[0]);
    absl::Status status = problem.PlaceIn(**region, false);
    const AttentionRequest& placed = problem.placed;
    const std::vector<unsigned char> zeros(problem.bytes[0].size());
    status.Update(
        memory_->CopyIn(const_cast<void*>(placed.q.data), zeros.data(), placed.q.size_bytes()));
    status.Update(memory_->CopyIn(const_cast<void*>(placed.k.data), problem.bytes[1].data(),
                                  placed.k.size_bytes()));
    status.Update(memory_->CopyIn(const_cast<void*>(placed.v.data), problem.bytes[2].data(),
                                  placed.v.size_bytes()));
    status.Update(memory_->CopyBehind(
        [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); },
        const_cast<void*>(placed.q.data), problem.bytes[0].data(), placed.q.size_bytes()));
    if (!status.ok()) return status;
    return Compare(problem, client_->Attention(placed));
  }

  absl::Status Die() {
    const auto region = client_->ShareCudaMemory(memory_->exported(), kTimeout);
    if (!region.ok()) return region.status();
    Problem problem({.heads = 16, .kv_heads = 16, .len = 8192});
    absl::Status status = problem.PlaceIn(**region, false);
    if (!status.ok()) return status;
    const auto call =
        client_->AttentionAsync(problem.placed, [](absl::StatusOr<AttentionResult>) {});
    std::this_thread::sleep_for(std::chrono::microseconds(getpid() % 4000));  // at any moment
    _exit(9);
  }

  absl::Status Size() {
    CudaMemory exported = memory_->exported();
    exported.size_bytes *= 2;
    if (kind_ == CudaKind::kVmm) {
      absl::Status status = Refusal(exported, "cuMemMap");
      if (!status.ok()) return status;
    }
    // Of a handle the driver knows the size: the lie is found when the memory is used.
    exported = memory_->exported();
    if (kind_ == CudaKind::kMalloc) exported.size_bytes *= 2;
    const auto region = client_->ShareCudaMemory(exported, kTimeout);
    if (!region.ok()) return region.status();
    Problem problem(kShapes[0]);
    absl::Status status = problem.PlaceIn(**region, false);
    if (!status.ok()) return status;
    problem.placed.o_place->data = (*region)->bytes().data() + memory_->exported().size_bytes - 16;
    // At the end of what the client believes to have, one that tells the truth is refused by the
    // server just so.
    return Expect(client_->Attention(problem.placed).status(), "do not lie in a region of");
  }

  absl::Status OtherGpu() {
    CudaMemory exported = memory_->exported();
    if (CountGpus() < 2) exported.gpu_uuid[0] ^= 0xff;
    return Refusal(exported, "which this server does not serve; it has cuda:0");
  }

  absl::Status Refusal(const CudaMemory& memory, const std::string& text) {
    return Expect(client_->ShareCudaMemory(memory, kTimeout).status(), text);
  }
  static absl::Status Expect(const absl::Status& status, const std::string& text) {
    if (!status.ok() && absl::StrContains(status.message(), text)) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("expected an error with \"", text, "\", got: ", status.ToString()));
  }

  const CudaKind kind_;
  // The region's memory, for longer than the region.
  std::unique_ptr<CudaAllocation> memory_;
  std::unique_ptr<Client> client_;
};

}  // namespace
}  // namespace attnd::testing

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: cuda_ipc_client ADDRESS SOCKET malloc|vmm MODE\n");
    return 2;
  }
  using attnd::testing::CudaKind;
  attnd::testing::Test test(argv[1], argv[2],
                            std::strcmp(argv[3], "vmm") == 0 ? CudaKind::kVmm : CudaKind::kMalloc);
  const absl::Status status = test.Run(argv[4]);
  if (status.ok()) return 0;
  std::printf("%s\n", status.ToString().c_str());
  return 1;
}
