// A server in process, and callers that know only the API: raw gRPC, no client library.
#ifndef ATTND_TESTS_SERVICE_HARNESS_H_
#define ATTND_TESTS_SERVICE_HARNESS_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attnd/v1/attnd.grpc.pb.h"
#include "kernels/sync.h"
#include "server/server.h"
#include "tests/fakes/temp_folder.h"

namespace attnd::testing {

using fakes::TempFolder;

// Long enough for a loaded machine under a sanitizer; a test that waits this long has failed.
inline constexpr std::chrono::seconds kPatience(60);

// Small budgets on free ports, no drain delay, no default deadline.
server::ServerOptions TestOptions();

// The CPU, with a gate before Run.
class GatedDevice final : public server::Device {
 public:
  explicit GatedDevice(const std::string& backend = "");

  // From now on batches stop before they run, ...
  void Hold();
  // ... until this.
  void Release();
  // Waits until a batch stands at the gate.
  void WaitUntilHeld();
  // From now on Run returns this.
  void FailWith(absl::Status status);
  // Request ids, in the order of running.
  std::vector<std::string> ran() const;

  const server::DeviceDescription& Describe() const override { return device_->Describe(); }
  absl::Status Supports(const kernels::AttentionProblem& problem) const override;
  absl::Status Begin(server::Stage stage, server::RunningBatch& batch) override;
  absl::StatusOr<bool> Done(server::RunningBatch& batch) override { return device_->Done(batch); }

  // head_dim that Supports() refuses; 0: none.
  std::atomic<int64_t> unsupported_head_dim{0};

 private:
  std::unique_ptr<server::Device> device_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> ran_ ABSL_GUARDED_BY(mutex_);
};

// How a call ended.
struct Outcome {
  grpc::Status status;
  v1::ComputeResponse response;
  std::multimap<std::string, std::string> trailers;

  grpc::StatusCode code() const { return status.error_code(); }
  // Of this trailer, or "(none)".
  std::string Trailer(const std::string& key) const;
};

struct CallOptions {
  std::chrono::milliseconds timeout{0};  // 0: no deadline
  // Metadata attnd-request-bytes: the true size, nothing, or this text.
  enum class Declare { kSize, kNothing, kText } declare = Declare::kSize;
  std::string declared_text = {};
  std::vector<std::pair<std::string, std::string>> metadata = {};
};

// A unary call with these bytes as its message, which need not be one.
class PendingCall {
 public:
  PendingCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& bytes,
              const CallOptions& options = {}, const std::string& method = "Compute");
  ~PendingCall();

  void Cancel() { context_.TryCancel(); }
  bool IsDone() const;
  Outcome Wait();

 private:
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  std::promise<grpc::Status> promise_;
  std::shared_future<grpc::Status> done_;
};

// A stream of raw messages to any method, one operation at a time.
class RawStream {
 public:
  // Declares no size unless told.
  RawStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
            const CallOptions& options = {.declare = CallOptions::Declare::kNothing});
  ~RawStream();

  bool Write(const std::string& message);
  // False at the end of the stream.
  bool Read(std::string* message);
  // Sends that nothing more comes.
  void WritesDone();
  // The same, if it has not been sent, and waits for the status.
  grpc::Status Finish();
  // After that.
  std::multimap<std::string, std::string> Trailers() const;
  void Cancel() { context_.TryCancel(); }

 private:
  bool Next();

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  bool writes_done_ = false;
  bool finished_ = false;
};

inline constexpr char kComputeMethod[] = "/attnd.v1.AttentionService/Compute";
inline constexpr char kStreamMethod[] = "/attnd.v1.AttentionService/ComputeStream";

// The messages of a ComputeStream that asks for `request`: its header, then q, k and v in order.
std::vector<std::string> StreamMessages(const v1::ComputeRequest& request, size_t chunk_bytes);

// Sends the messages as far as the server takes them; the answer's chunks, put together.
Outcome ComputeStream(const std::shared_ptr<grpc::Channel>& channel,
                      const std::vector<std::string>& messages,
                      const CallOptions& options = {.declare = CallOptions::Declare::kNothing});
// The same in two steps.
void WriteAll(RawStream& stream, const std::vector<std::string>& messages);
Outcome ReadAnswer(RawStream& stream);

// Body and status of a GET from this machine.
std::pair<int, std::string> HttpGet(int port, const std::string& path);

// Value of a series as /metrics names it, labels included; 0 if it is not there.
double MetricIn(const std::string& metrics, const std::string& series);

class TestServer {
 public:
  explicit TestServer(const server::ServerOptions& options = TestOptions(),
                      std::unique_ptr<server::Device> device = nullptr,
                      server::Server::DeviceLost on_device_lost = nullptr);

  server::Server& operator*() { return *server_; }
  server::Server* operator->() { return server_.get(); }
  void Destroy() { server_.reset(); }

  std::string address() const;
  // A connection of its own each time.
  std::shared_ptr<grpc::Channel> NewChannel() const;
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  Outcome Compute(const v1::ComputeRequest& request, const CallOptions& options = {}) const;
  Outcome ComputeBytes(const std::string& bytes, const CallOptions& options = {}) const;
  std::unique_ptr<PendingCall> Begin(const v1::ComputeRequest& request,
                                     const CallOptions& options = {}) const;

  std::pair<int, std::string> Get(const std::string& path) const {
    return HttpGet(server_->http_port(), path);
  }
  double Metric(const std::string& series) const {
    return MetricIn(server_->metrics().Serialize(), series);
  }

 private:
  std::unique_ptr<server::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

std::shared_ptr<grpc::Channel> Connect(const std::string& address);

// Polls until it holds.
::testing::AssertionResult Eventually(const std::function<bool()>& condition);

struct Shape {
  int64_t batch = 1;
  int64_t q_heads = 2;
  int64_t kv_heads = 1;
  int64_t q_len = 8;
  int64_t kv_len = 8;
  int64_t head_dim = 16;
  v1::DataType dtype = v1::DATA_TYPE_FLOAT32;
};

// BHSD, values N(0,1) from the seed.
v1::ComputeRequest MakeRequest(const Shape& shape, uint64_t seed = 1);

// The outcome is OK, and its O (and LSE, if wanted) is that of the fp64 reference, within the
// dtype's bound.
::testing::AssertionResult IsRight(const Outcome& outcome, const v1::ComputeRequest& request);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_SERVICE_HARNESS_H_
