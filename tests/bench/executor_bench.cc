// How well an executor keeps one GPU and its bus in work, without gRPC: see README.md.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "tests/bench/cuda_trace.h"
#include "tests/fakes/attention_requests.h"
#include "tests/gpu/gpu.h"

ABSL_FLAG(std::string, json, "", "File for the results. Empty: none.");
ABSL_FLAG(int, seconds, 3, "How long each of the two feeds runs.");
ABSL_FLAG(int, callers, 64, "Callers of the feeds.");

namespace attnd::bench {
namespace {

using fakes::AttentionSpec;
using fakes::Layout;
using server::Request;
using std::chrono::steady_clock;

constexpr int64_t kPoolBytes = int64_t{6} << 30;

double MicrosecondsSince(steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "executor_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

// A GPU with tracing, and a way to call its executor.
class Bench {
 public:
  Bench() {
    absl::StatusOr<server::Gpu> gpu = server::OpenGpu(0, "", "");
    Check(gpu.status());
    raw_backend_ = kernelsOf(*gpu);
    cuda_ = std::make_shared<TracedCuda>(gpu->cuda, &trace_);
    std::vector<std::unique_ptr<kernels::Backend>> backends;
    for (auto& backend : gpu->backends) {
      backends.push_back(std::make_unique<TracedBackend>(std::move(backend), &trace_));
    }
    auto device = server::MakeCudaDevice(cuda_, std::move(backends), gpu->description, {});
    Check(device.status());
    device_ = *std::move(device);
    payloads_ = testing::PinnedPool(gpu->cuda, kPoolBytes);
    answers_ = testing::PinnedPool(gpu->cuda, kPoolBytes / 2);
    served_ = std::make_unique<testing::Served>(
        device_.get(), answers_.get(), server::SchedulerOptions{.max_queue_bytes = kPoolBytes});
  }

  bool Supports(const AttentionSpec& spec) {
    return device_->Supports(fakes::MakeRequest(*payloads_, spec)->problems[0].problem).ok();
  }

  // Submit to end; the answer, whose memory goes back when it does.
  server::Answer Call(std::unique_ptr<Request> request) {
    std::promise<absl::StatusOr<server::Answer>> ended;
    const auto job = std::make_shared<server::Job>(
        std::move(request), [&](server::Job&, absl::StatusOr<server::Answer> answer,
                                server::Stage) { ended.set_value(std::move(answer)); });
    Check(served_->scheduler().Submit(job));
    absl::StatusOr<server::Answer> answer = ended.get_future().get();
    Check(answer.status());
    return *std::move(answer);
  }

  CudaTrace& trace() { return trace_; }
  TracedCuda& cuda() { return *cuda_; }
  server::BufferPool& payloads() { return *payloads_; }
  server::BufferPool& answers() { return *answers_; }
  kernels::Backend& backend() { return *raw_backend_; }
  const std::string& device_name() const { return device_->Describe().name; }
  const std::string& backend_name() const { return device_->Describe().backend; }

 private:
  // One more, for launches beside the executor's.
  static std::unique_ptr<kernels::Backend> kernelsOf(server::Gpu& gpu) {
    auto backend = std::move(gpu.backends.back());
    gpu.backends.pop_back();
    absl::StatusOr<server::Gpu> another = server::OpenGpu(0, "", "");
    Check(another.status());
    gpu.backends.push_back(std::move(another->backends[0]));
    return backend;
  }

  CudaTrace trace_;
  std::shared_ptr<TracedCuda> cuda_;
  std::unique_ptr<kernels::Backend> raw_backend_;
  std::unique_ptr<server::BufferPool> payloads_;
  std::unique_ptr<server::BufferPool> answers_;
  std::unique_ptr<server::Device> device_;
  std::unique_ptr<testing::Served> served_;
};

// A request of the spec whose bytes are whatever the pool's blocks hold: random after Fill().
std::unique_ptr<Request> Recycled(Bench& bench, const Request& like) {
  auto request = std::make_unique<Request>();
  request->problems = like.problems;
  request->output = like.output;
  request->arrival = steady_clock::now();
  request->q = *bench.payloads().Allocate(like.q.size_bytes());
  request->k = *bench.payloads().Allocate(like.k.size_bytes());
  request->v = *bench.payloads().Allocate(like.v.size_bytes());
  return request;
}

// Callers that each send their next request when they have the last answer.
nlohmann::json Feed(Bench& bench, const AttentionSpec& spec, bool resident) {
  const int callers = absl::GetFlag(FLAGS_callers);
  const std::unique_ptr<Request> like = fakes::MakeRequest(bench.payloads(), spec);
  {
    std::vector<std::unique_ptr<Request>> fill;
    for (int i = 0; i < callers; ++i) fill.push_back(fakes::MakeRequest(bench.payloads(), spec, i));
  }
  bench.cuda().resident = false;
  std::atomic<bool> stop{false};
  std::atomic<int64_t> calls{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < callers; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        bench.Call(Recycled(bench, *like));
        ++calls;
      }
    });
  }
  // Pinned and device memory are made, and the device holds real inputs.
  while (calls < 3 * callers) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  bench.cuda().resident = resident;
  bench.trace().Start();
  const int64_t calls_before = calls;
  const auto begin = steady_clock::now();
  std::this_thread::sleep_for(std::chrono::seconds(absl::GetFlag(FLAGS_seconds)));
  const double seconds = MicrosecondsSince(begin) * 1e-6;
  const auto done = static_cast<double>(calls - calls_before);
  bench.trace().Stop();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  cudaDeviceSynchronize();
  bench.cuda().resident = false;
  const double upload = bench.trace().BusyShare(Work::kUpload);
  const double kernels = bench.trace().BusyShare(Work::kKernels);
  const double download = bench.trace().BusyShare(Work::kDownload);
  return {{"resident", resident},
          {"calls_per_s", done / seconds},
          {"upload_gb_per_s", resident ? 0 : done / seconds * like->payload_bytes() * 1e-9},
          {"tflops", done / seconds * Flops(like->problems[0].problem) * 1e-12},
          {"upload_busy", upload},
          {"kernels_busy", kernels},
          {"download_busy", download},
          {"busiest", std::max({upload, kernels, download})}};
}

// The stages of one request with nothing beside them, in microseconds.
struct Alone {
  double upload_us = 0;
  double kernel_us = 0;
  double download_us = 0;
  double together_us = 0;  // all of it and a wait, by the wall clock
};

Alone MeasureAlone(Bench& bench, const Request& request, int rounds) {
  const server::RequestPlace place = server::PlaceRequest(request);
  unsigned char* block = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&block), static_cast<size_t>(place.size_bytes));
  const server::Buffer o = *bench.answers().Allocate(request.output.o_bytes);
  const server::TensorBases device = server::BasesIn(block, place);
  const server::TensorBases host = server::BasesOnHost(request, o, {});
  server::Piece piece;
  piece.slot_end = 1;
  piece.is_whole_request = true;
  std::vector<server::CudaCopy> up;
  std::vector<server::CudaCopy> down;
  std::vector<kernels::AttentionTask> tasks;
  const kernels::KernelPlan plan = bench.backend().Plan(request.problems[0].problem);
  server::AppendUploads(request, place, piece, host, device, up);
  server::AppendDownloads(request, place, piece, host, device, down);
  server::AppendTasks(request, place, piece, device, {&plan, 1}, tasks);
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaEvent_t events[4];
  for (cudaEvent_t& event : events) cudaEventCreate(&event);
  std::vector<double> times[4];
  for (int i = 0; i < rounds; ++i) {
    const bool with_events = i % 2 == 0;
    const auto begin = steady_clock::now();
    if (with_events) cudaEventRecord(events[0], stream);
    Check(bench.cuda().CopyAsync(up, stream));
    if (with_events) cudaEventRecord(events[1], stream);
    Check(bench.backend().Run(tasks, nullptr, stream));
    if (with_events) cudaEventRecord(events[2], stream);
    Check(bench.cuda().CopyAsync(down, stream));
    if (with_events) cudaEventRecord(events[3], stream);
    cudaStreamSynchronize(stream);
    if (!with_events) {
      times[3].push_back(MicrosecondsSince(begin));
      continue;
    }
    for (int e = 0; e < 3; ++e) {
      float ms = 0;
      cudaEventElapsedTime(&ms, events[e], events[e + 1]);
      times[e].push_back(1000.0 * ms);
    }
  }
  for (const cudaEvent_t event : events) cudaEventDestroy(event);
  cudaStreamDestroy(stream);
  cudaFree(block);
  return {Median(times[0]), Median(times[1]), Median(times[2]), Median(times[3])};
}

nlohmann::json OneLarge(Bench& bench, const AttentionSpec& spec) {
  const std::unique_ptr<Request> like = fakes::MakeRequest(bench.payloads(), spec);
  const Alone alone = MeasureAlone(bench, *like, 14);
  std::vector<double> totals;
  for (int i = 0; i < 12; ++i) {
    std::unique_ptr<Request> request = fakes::MakeRequest(bench.payloads(), spec);
    const auto begin = steady_clock::now();
    request->arrival = begin;
    bench.Call(std::move(request));
    if (i >= 2) totals.push_back(MicrosecondsSince(begin));
  }
  const double total = Median(totals);
  const double sum = alone.upload_us + alone.kernel_us + alone.download_us;
  return {{"layout", spec.layout == Layout::kBHSD ? "bhsd" : "bshd"},
          {"total_us", total},
          {"upload_us", alone.upload_us},
          {"kernel_us", alone.kernel_us},
          {"download_us", alone.download_us},
          {"ratio", total / sum}};
}

nlohmann::json OneSmall(Bench& bench, const AttentionSpec& spec) {
  constexpr int kCalls = 2000;
  const std::unique_ptr<Request> like = fakes::MakeRequest(bench.payloads(), spec);
  const Alone alone = MeasureAlone(bench, *like, kCalls);
  std::vector<double> totals;
  for (int i = 0; i < kCalls; ++i) {
    std::unique_ptr<Request> request = Recycled(bench, *like);
    const auto begin = steady_clock::now();
    bench.Call(std::move(request));
    totals.push_back(MicrosecondsSince(begin));
  }
  std::sort(totals.begin(), totals.end());
  return {{"head_dim", spec.head_dim},
          {"p50_us", totals[kCalls / 2]},
          {"p99_us", totals[kCalls * 99 / 100]},
          {"launch_and_copies_us", alone.together_us},
          {"over_us", totals[kCalls / 2] - alone.together_us}};
}

void Print(const char* title, const nlohmann::json& rows) {
  std::printf("%s\n", title);
  for (const auto& row : rows) {
    for (const auto& [key, value] : row.items()) {
      if (value.is_number_float()) {
        std::printf("  %s %.3f", key.c_str(), value.get<double>());
      } else {
        std::printf("  %s %s", key.c_str(), value.dump().c_str());
      }
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

int Main() {
  Bench bench;
  AttentionSpec spec = {.dtype = kernels::DType::kBF16,
                        .q_heads = 16,
                        .kv_heads = 16,
                        .q_len = 4096,
                        .kv_len = 4096,
                        .head_dim = 128};
  nlohmann::json results = {{"device", bench.device_name()}, {"backend", bench.backend_name()}};
  std::printf("%s, %s, bf16\n", bench.device_name().c_str(), bench.backend_name().c_str());
  AttentionSpec small = spec;
  small.q_heads = small.kv_heads = 8;
  small.q_len = small.kv_len = 64;
  small.head_dim = 64;
  if (!bench.Supports(small)) small.head_dim = 128;  // a development build
  results["small"].push_back(OneSmall(bench, small));
  Print("one B1 H8 L64 through the executor, over its launch and copies", results["small"]);
  AttentionSpec large = spec;
  large.q_len = large.kv_len = 16384;
  for (const Layout layout : {Layout::kBHSD, Layout::kBSHD}) {
    large.layout = layout;
    results["large"].push_back(OneLarge(bench, large));
  }
  Print("one B1 H16 L16384 D128 full: total / (upload + kernel + download)", results["large"]);
  for (const bool resident : {false, true}) {
    results["feed"].push_back(Feed(bench, spec, resident));
  }
  Print("callers of B1 H16 L4096 D128 full: busy shares", results["feed"]);
  if (const std::string path = absl::GetFlag(FLAGS_json); !path.empty()) {
    std::ofstream(path) << results.dump(1) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("times an executor on the first GPU.\n\nUsage: executor_bench");
  absl::ParseCommandLine(argc, argv);
  return attnd::bench::Main();
}
