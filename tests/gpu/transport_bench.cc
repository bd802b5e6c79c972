// One large problem over each transport, beside the kernel alone and the bus: what is served, of
// what parts, and whether it is as fast as it must be. A client of a server on the same GPU.
//
//   transport_bench --server=ADDRESS --local_socket=PATH [--rounds=9] [--json=FILE]
//
// Exits 1 where a region or memory on the GPU misses its bound, or bits differ between transports.
// With --by_grpc memory on the GPU may miss it: a call that asks for nothing takes about as long as
// the bound leaves beside the kernel.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/tools/tool.h"
#include "kernels/registry.h"
#include "nlohmann/json.hpp"
#include "tests/bench/device_tasks.h"
#include "tests/gpu/cuda_client.h"

ABSL_FLAG(std::string, server, "", "The server's address.");
ABSL_FLAG(std::string, local_socket, "", "Its --local_socket.");
ABSL_FLAG(int, rounds, 9, "Calls over each transport; their median counts.");
ABSL_FLAG(bool, by_grpc, false, "Calls on shared memory by gRPC, too, to compare.");
ABSL_FLAG(std::string, json, "", "A file for the rows as JSON.");

namespace attnd::testing {
namespace {

constexpr int64_t kHeads = 16;
constexpr int64_t kLen = 16384;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kTensorBytes = kHeads * kLen * kHeadDim * 2;
const std::vector<int64_t> kShape = {1, kHeads, kLen, kHeadDim};
// Each way, as measured with pinned memory on an H200 machine.
constexpr double kBusBytesPerUs = 55e3;
// The server cuts this problem at its heads: 16 MiB and 16384 rows each (executor/cuda_layout.h).
constexpr double kSlices = kHeads;
constexpr double kRegionFactor = 1.25;
constexpr double kCudaFactor = 1.1;
constexpr double kCudaExtraUs = 100;
constexpr absl::Duration kTimeout = absl::Seconds(60);

// Values about 1 of both signs, in 2^16 different places.
std::vector<uint16_t> Values(uint32_t seed) {
  std::vector<uint16_t> values(kTensorBytes / 2);
  for (uint16_t& value : values) {
    seed = seed * 1664525 + 1013904223;
    value = static_cast<uint16_t>(0x3e80 | (seed >> 16 & 0x807f));
  }
  return values;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Row {
  std::string transport;
  bool causal = false;
  double served_us = 0;  // as the caller sees it
  ServerTiming timing;   // of the call with the median time
  double kernel_us = 0;  // alone
  double empty_call_us = 0;
  double bus_us = 0;    // of the busier direction; 0 for memory that crosses no bus
  double bound_us = 0;  // 0: none
};

// The time that a call through a region may take. Upload, kernels and download overlap, slice by
// slice, so that the busiest of them is the call's length but for what stands before and behind it:
// one slice of each of the others.
double RegionBoundUs(double up_us, double kernel_us, double down_us) {
  const double busiest = std::max({up_us, kernel_us, down_us});
  return kRegionFactor * busiest + (up_us + kernel_us + down_us - busiest) / kSlices;
}

class Bench {
 public:
  Bench(std::unique_ptr<Client> client, int rounds) : client_(std::move(client)), rounds_(rounds) {}

  absl::Status Run() {
    auto memory = CudaAllocation::New(CudaKind::kVmm, 4 * kTensorBytes);
    if (!memory.ok()) return memory.status();
    const auto cuda_region = client_->ShareCudaMemory((*memory)->exported(), kTimeout);
    if (!cuda_region.ok()) return cuda_region.status();
    const auto host_region = client_->NewRegion(4 * kTensorBytes, kTimeout);
    if (!host_region.ok()) return host_region.status();
    for (uint32_t i = 0; i < 3; ++i) inputs_[i] = Values(i + 1);
    o_.resize(kTensorBytes / 2);
    for (const bool causal : {true, false}) {
      const absl::StatusOr<double> kernel_us = KernelUs(causal);
      if (!kernel_us.ok()) return kernel_us.status();
      kernel_us_ = *kernel_us;
      const absl::StatusOr<double> empty_call_us = EmptyCallUs();
      if (!empty_call_us.ok()) return empty_call_us.status();
      empty_call_us_ = *empty_call_us;
      for (const Transport transport : {Transport::kUnary, Transport::kStream}) {
        absl::Status status = Measure(TransportName(transport), Inline(causal, transport));
        if (!status.ok()) return status;
        if (transport == Transport::kUnary) expected_ = o_;
        if (o_ != expected_) return absl::InternalError("stream: other bits than unary's");
      }
      absl::Status status = MeasureRegion(causal, **host_region);
      if (status.ok()) status = MeasureCuda(causal, **memory, **cuda_region);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  AttentionRequest Inline(bool causal, Transport transport) {
    AttentionRequest request;
    TensorView* const views[] = {&request.q, &request.k, &request.v};
    for (int i = 0; i < 3; ++i) *views[i] = {DType::kBFloat16, kShape, inputs_[i].data()};
    request.o_place = OutputView{o_.data(), nullptr};
    request.causal = causal ? Causal::kBottomRight : Causal::kNone;
    request.transport = transport;
    request.timeout = kTimeout;
    return request;
  }

  // Q, K, V and O one after the other in the region.
  AttentionRequest Placed(bool causal, const LocalRegion& region) {
    AttentionRequest request = Inline(causal, Transport::kAuto);
    unsigned char* at = region.bytes().data();
    for (TensorView* view : {&request.q, &request.k, &request.v}) {
      view->data = at;
      view->region = &region;
      at += kTensorBytes;
    }
    request.o_place = OutputView{at, &region};
    return request;
  }

  absl::Status MeasureRegion(bool causal, const LocalRegion& region) {
    const AttentionRequest request = Placed(causal, region);
    unsigned char* at = region.bytes().data();
    for (const std::vector<uint16_t>& input : inputs_) {
      std::memcpy(at, input.data(), kTensorBytes);
      at += kTensorBytes;
    }
    absl::Status status = Measure("region", request);
    if (!status.ok()) return status;
    if (std::memcmp(at, expected_.data(), kTensorBytes) != 0) {
      return absl::InternalError("region: other bits than unary's");
    }
    rows_.back().bound_us =
        RegionBoundUs(3 * kTensorBytes / kBusBytesPerUs, kernel_us_, kTensorBytes / kBusBytesPerUs);
    return absl::OkStatus();
  }

  absl::Status MeasureCuda(bool causal, CudaAllocation& memory, const LocalRegion& region) {
    const AttentionRequest request = Placed(causal, region);
    unsigned char* at = region.bytes().data();
    for (const std::vector<uint16_t>& input : inputs_) {
      absl::Status status = memory.CopyIn(at, input.data(), kTensorBytes);
      if (!status.ok()) return status;
      at += kTensorBytes;
    }
    absl::Status status = Measure("cuda", request);
    if (status.ok()) status = memory.CopyOut(o_.data(), at, kTensorBytes);
    if (!status.ok()) return status;
    if (o_ != expected_) return absl::InternalError("cuda: other bits than unary's");
    rows_.back().bus_us = 0;
    rows_.back().bound_us = kCudaFactor * kernel_us_ + kCudaExtraUs;
    return absl::OkStatus();
  }

  // A call that asks for nothing, when both sides have been idle for as long as the kernel takes,
  // as they are when an answer comes: gRPC's part in every call, and the processors' waking up.
  absl::StatusOr<double> EmptyCallUs() {
    std::vector<double> times;
    for (int i = -2; i < rounds_; ++i) {
      std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(kernel_us_));
      const auto begin = std::chrono::steady_clock::now();
      if (absl::Status status = client_->CheckHealth(kTimeout); !status.ok()) return status;
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      if (i >= 0) times.push_back(took.count());
    }
    return Median(times);
  }

  absl::Status Measure(const std::string& name, const AttentionRequest& request) {
    std::vector<std::pair<double, ServerTiming>> calls;
    for (int i = -2; i < rounds_; ++i) {  // two that do not count
      const auto begin = std::chrono::steady_clock::now();
      const absl::StatusOr<AttentionResult> result = client_->Attention(request);
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      if (!result.ok()) {
        return absl::Status(result.status().code(),
                            absl::StrCat(name, ": ", result.status().message()));
      }
      if (i >= 0) calls.emplace_back(took.count(), result->timing);
    }
    const auto middle = calls.begin() + static_cast<int64_t>(calls.size()) / 2;
    std::nth_element(calls.begin(), middle, calls.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    Row row;
    row.transport = name;
    row.causal = request.causal != Causal::kNone;
    row.served_us = middle->first;
    row.timing = middle->second;
    row.kernel_us = kernel_us_;
    row.empty_call_us = empty_call_us_;
    row.bus_us = 3 * kTensorBytes / kBusBytesPerUs;
    rows_.push_back(row);
    return absl::OkStatus();
  }

  // The first backend that runs on this GPU, which is the server's, in one launch.
  absl::StatusOr<double> KernelUs(bool causal) {
    std::unique_ptr<kernels::Backend> backend;
    for (const kernels::BackendEntry& entry : kernels::BackendEntries()) {
      if (entry.memory != kernels::MemoryKind::kDevice || !entry.available().ok()) continue;
      backend = entry.create({});
      break;
    }
    if (backend == nullptr) return absl::FailedPreconditionError("no backend runs on this GPU");
    kernels::AttentionProblem problem = {.dtype = kernels::DType::kBF16,
                                         .batch = 1,
                                         .q_heads = kHeads,
                                         .kv_heads = kHeads,
                                         .q_len = kLen,
                                         .kv_len = kLen,
                                         .head_dim = kHeadDim,
                                         .mask = {},
                                         .scale = kernels::DefaultScale(kHeadDim)};
    if (causal) problem.mask.causal.alignment = kernels::Causal::kBottomRight;
    kernels::AttentionTask task = {problem, backend->Plan(problem), {}};
    task.args.q = inputs_[0].data();
    task.args.k = inputs_[1].data();
    task.args.v = inputs_[2].data();
    task.args.o = o_.data();
    task.args.q_strides = task.args.k_strides = task.args.v_strides = task.args.o_strides =
        kernels::BHSD(kHeads, kLen, kHeadDim);
    auto tasks = bench::CopyToDevice(*backend, {&task, 1});
    if (!tasks.ok()) return tasks.status();
    std::vector<double> times;
    for (int i = -2; i < rounds_; ++i) {
      const absl::StatusOr<double> us = (*tasks)->RunUs(1);
      if (!us.ok()) return us.status();
      if (i >= 0) times.push_back(*us);
    }
    return Median(times);
  }

  const std::unique_ptr<Client> client_;
  const int rounds_;
  std::vector<uint16_t> inputs_[3];
  std::vector<uint16_t> o_;
  std::vector<uint16_t> expected_;  // unary's
  double kernel_us_ = 0;
  double empty_call_us_ = 0;
  std::vector<Row> rows_;
};

nlohmann::ordered_json ToJson(const Row& row) {
  nlohmann::ordered_json json = {{"transport", row.transport},
                                 {"mask", row.causal ? "causal" : "full"},
                                 {"served_us", row.served_us},
                                 {"queue_us", row.timing.queue_us},
                                 {"upload_us", row.timing.upload_us},
                                 {"run_us", row.timing.run_us},
                                 {"download_us", row.timing.download_us},
                                 {"total_us", row.timing.total_us},
                                 {"kernel_us", row.kernel_us},
                                 {"empty_call_us", row.empty_call_us},
                                 {"bus_us", row.bus_us},
                                 {"ratio_to_kernel", row.served_us / row.kernel_us}};
  if (row.bus_us > 0) json["ratio_to_bus"] = row.served_us / row.bus_us;
  if (row.bound_us > 0) {
    json["bound_us"] = row.bound_us;
    json["within_bound"] = row.served_us <= row.bound_us;
  }
  return json;
}

bool Print(const std::vector<Row>& rows) {
  bool fine = true;
  std::printf("%-9s %-6s %10s %9s %9s %9s %9s %9s %10s %8s %7s %10s\n", "transport", "mask",
              "served us", "upload", "run", "download", "kernel", "bus", "empty call", "/kernel",
              "/bus", "bound us");
  for (const Row& row : rows) {
    const bool is_missed = row.bound_us > 0 && row.served_us > row.bound_us;
    fine = fine && !is_missed;
    std::printf("%-9s %-6s %10.0f %9lld %9lld %9lld %9.0f %9.0f %10.0f %8.2f %7s %10s%s\n",
                row.transport.c_str(), row.causal ? "causal" : "full", row.served_us,
                static_cast<long long>(row.timing.upload_us),
                static_cast<long long>(row.timing.run_us),
                static_cast<long long>(row.timing.download_us), row.kernel_us, row.bus_us,
                row.empty_call_us, row.served_us / row.kernel_us,
                row.bus_us > 0 ? absl::StrFormat("%.2f", row.served_us / row.bus_us).c_str() : "-",
                row.bound_us > 0 ? absl::StrFormat("%.0f", row.bound_us).c_str() : "-",
                is_missed ? "  MISSED" : "");
  }
  return fine;
}

int Main() {
  ClientOptions options;
  options.local_socket = absl::GetFlag(FLAGS_local_socket);
  options.calls_without_grpc = !absl::GetFlag(FLAGS_by_grpc);
  auto client = Client::Connect(absl::GetFlag(FLAGS_server), options);
  absl::Status status = client.status();
  std::vector<Row> rows;
  if (client.ok()) {
    Bench bench(*std::move(client), std::max(1, absl::GetFlag(FLAGS_rounds)));
    status = bench.Run();
    rows = bench.rows();
  }
  const bool fine = Print(rows);
  if (!status.ok()) {
    std::fprintf(stderr, "transport_bench: %s\n", status.ToString().c_str());
    return 1;
  }
  if (const std::string path = absl::GetFlag(FLAGS_json); !path.empty()) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const Row& row : rows) json.push_back(ToJson(row));
    std::ofstream(path) << json.dump(1) << "\n";
  }
  return fine ? 0 : 1;
}

}  // namespace
}  // namespace attnd::testing

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  attnd::tools::TuneProcess();
  attnd::UsePolling();
  return attnd::testing::Main();
}
