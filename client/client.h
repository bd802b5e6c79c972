// The C++ client: Q, K and V from the caller's memory, O back.
//
//   auto client = attnd::Client::Connect("127.0.0.1:7070");
//   attnd::AttentionRequest request;
//   request.q = {attnd::DType::kFloat16, {1, 8, 512, 64}, q.data()};
//   request.k = ...; request.v = ...;
//   request.causal = attnd::Causal::kBottomRight;
//   absl::StatusOr<attnd::AttentionResult> result = (*client)->Attention(request);
//
// In place, on the server's host:
//
//   auto region = (*client)->NewRegion(64 << 20, absl::Seconds(10));
//   auto q = attnd::NewTensor(**region, attnd::DType::kFloat16, {1, 8, 512, 64});  // and k, v, o
//   ... write to q->data ...
//   request.q = q->input();
//   request.o_place = o->output();
#ifndef ATTND_CLIENT_CLIENT_H_
#define ATTND_CLIENT_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/region.h"

namespace attnd {

enum class DType { kFloat32, kFloat16, kBFloat16 };
enum class Layout { kBHSD, kBSHD, kTHD };
enum class Causal { kNone, kTopLeft, kBottomRight };
// How tensors go: in one message each way, below 2 GB and the server's max_unary_bytes; in chunks
// of about 1 MB, up to its max_stream_bytes; or through memory that is shared with a server on this
// host. kAuto: the last where it can be had, for tensors that lie in such memory already and for
// kRegionFromBytes of Q, K and V; else a stream for more than kStreamFromBytes, and where the
// server refuses the message for good.
//
// Tensors that lie elsewhere are copied into regions that the client keeps, and answers out of
// them, on the calling thread and the callback's. Where that cannot be (another host, another user,
// no memory), kAuto takes another way and kRegion fails.
enum class Transport { kAuto, kUnary, kStream, kRegion };

inline constexpr int64_t kStreamFromBytes = int64_t{64} << 20;
// Measured, copies included: from 64 KiB on a region is 1.5 to 1.8 times as fast as a message,
// below 16 KiB it gains nothing.
inline constexpr int64_t kRegionFromBytes = int64_t{64} << 10;

int64_t SizeBytes(DType dtype);
const char* DTypeName(DType dtype);              // "float32", "float16", "bfloat16"
const char* TransportName(Transport transport);  // "auto", "unary", "stream", "region"

// A row-major tensor in memory that the caller keeps; it must stay until the call has ended.
struct TensorView {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  // Where `data` lies, for a server to use it in place; null: anywhere. Nobody may write to it
  // until the call has ended.
  const LocalRegion* region = nullptr;
  // In a region only: distances in elements between the axes' entries, the last 1. Empty: dense.
  std::vector<int64_t> strides_elems{};

  // Product of the extents, times the element's size. 0 if an extent is 0 or negative; INT64_MAX if
  // the product would pass it.
  int64_t size_bytes() const;
};

// A place for an output, which is then not in the result but there; what is there after a failure
// is of no use. Nobody else may use it until the call has ended.
struct OutputView {
  void* data = nullptr;
  // Where `data` lies, for a server to write there; null: anywhere, for O alone.
  const LocalRegion* region = nullptr;
  std::vector<int64_t> strides_elems{};  // as TensorView's
};

// One problem. Shapes by layout, as proto/attnd/v1/attnd.proto has them; absent options take the
// defaults there.
struct AttentionRequest {
  TensorView q;
  TensorView k;
  TensorView v;
  Layout layout = Layout::kBHSD;
  Causal causal = Causal::kNone;
  absl::optional<int64_t> window_left;   // keys, inclusive
  absl::optional<int64_t> window_right;  // keys, inclusive
  absl::optional<float> scale;
  absl::optional<float> softcap;
  std::vector<float> alibi_slopes;
  std::vector<int64_t> cu_seqlens_q;
  std::vector<int64_t> cu_seqlens_kv;
  bool want_lse = false;
  absl::optional<OutputView> o_place;
  absl::optional<OutputView> lse_place;  // with want_lse
  int priority = 0;
  std::string request_id;
  Transport transport = Transport::kAuto;
  // The whole call with its retries ends by then. Default: no deadline of the client's own.
  absl::optional<absl::Duration> timeout;
};

// A tensor that owns its bytes: dense, row-major, little-endian.
struct Tensor {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<unsigned char> bytes;

  TensorView view() const { return {dtype, shape, bytes.data()}; }
};

// A dense tensor in a region, which must outlive it.
struct RegionTensor {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  void* data = nullptr;  // aligned to kRegionAlignment
  const LocalRegion* region = nullptr;

  TensorView input() const { return {dtype, shape, data, region}; }
  OutputView output() const { return {data, region}; }
};

// In the region's next free bytes (LocalRegion::Allocate, whose errors these are). INVALID_ARGUMENT
// for a negative extent.
absl::StatusOr<RegionTensor> NewTensor(LocalRegion& region, DType dtype,
                                       std::vector<int64_t> shape);

// The server's own account of the call.
struct ServerTiming {
  int64_t queue_us = 0;
  int64_t upload_us = 0;
  int64_t run_us = 0;
  int64_t download_us = 0;
  int64_t total_us = 0;
};

struct AttentionResult {
  Tensor o;  // without bytes, as lse, if the request gave it a place
  absl::optional<Tensor> lse;
  ServerTiming timing;
  Transport transport = Transport::kUnary;  // which it took: never kAuto
  std::string backend;
  std::string kernel;
  std::string device;
  uint64_t batch_id = 0;
  int64_t batch_size = 0;
  int64_t sent_bytes = 0;      // of the last try's request: its message, or a stream's payload
  int64_t received_bytes = 0;  // of the answer's message, or messages
  int tries = 1;
};

struct ServerInfo {
  std::string instance_id;
  std::string version;
  std::string backend;
  std::string backend_reason;
  bool takes_cuda_memory = false;  // Client::ShareCudaMemory
  struct Device {
    std::string id;
    std::string name;
    int64_t processors = 0;
    std::vector<std::string> backends;
  };
  std::vector<Device> devices;
  int64_t max_unary_bytes = 0;
  int64_t max_queue_requests = 0;
  int64_t max_queue_bytes = 0;
  int64_t max_batch_problems = 0;
  int64_t max_head_dim = 0;
  int64_t max_header_bytes = 0;
  int64_t default_deadline_ms = 0;
  int64_t receive_bytes = 0;
  int64_t max_stream_bytes = 0;
};

struct ClientOptions {
  // 1: no retry. What is retried, and when: see Client.
  int max_tries = 4;
  // First wait before a retry, doubled each time, times a random factor of 0.8 to 1.2; a server's
  // pushback replaces it, up to a minute; a longer one ends the call.
  absl::Duration first_backoff = absl::Milliseconds(20);
  absl::Duration max_backoff = absl::Seconds(1);
  // Retries may be at most this part of the calls, with a reserve of 10 (100 once that many have
  // been saved up): a failing server is not flooded.
  double retry_budget = 0.1;
  // Messages of this size and more go over the bulk channel, so that they do not delay small ones.
  int64_t bulk_bytes = 64 << 10;
  // The server's --local_socket; empty: where it is by default; kNoLocalSocket: the client makes no
  // regions.
  std::string local_socket;
  // Regions that the client makes for tensors that lie elsewhere, together at most, used or kept.
  int64_t max_region_bytes = int64_t{2} << 30;
  // A synchronous call on memory of a GPU looks for its answer this long before it sleeps, as
  // CUDA's own waiting does: to be woken may take a tenth of the call's time. Zero: it sleeps.
  absl::Duration busy_poll = absl::Milliseconds(20);
  // Calls that are waited for and whose tensors all lie in regions go over the side socket of the
  // server that shares them: a packet each way, a fraction of what gRPC takes. Not with metadata.
  bool calls_without_grpc = true;
  // Goes with every call that computes, for a proxy or a server's --tenant_metadata. Names of a-z,
  // 0-9, '-', '_' and '.', none that gRPC or the client uses; values printable ASCII.
  std::vector<std::pair<std::string, std::string>> metadata{};
};
inline constexpr char kNoLocalSocket[] = "none";

// A running asynchronous call.
class Call {
 public:
  virtual ~Call() = default;
  // The callback still comes, with CANCELLED unless the answer was there first. Any thread.
  virtual void Cancel() = 0;
};

// What is known of a call's failure beside its status.
struct Failure {
  int tries = 0;             // that were sent
  bool from_server = false;  // an attnd said so, and nothing between it and the client
  // When it is to be asked again; negative: never. Absent: it said nothing of that.
  absl::optional<int64_t> pushback_ms;
  // The server has computed nothing, and does not hold the call's regions.
  bool untouched = true;
};

// A call that its caller waits for. Its destructor cancels it, and waits until nothing reads its
// tensors any more; it comes before its client's. `WaitFor` and `failure` are one thread's at a
// time.
class StartedCall : public Call {
 public:
  // The call's end, once; nullopt: it has not come within `timeout`. What is to be copied to the
  // caller's memory is copied here.
  virtual absl::optional<absl::StatusOr<AttentionResult>> WaitFor(absl::Duration timeout) = 0;
  // Once the call has ended in an error.
  virtual Failure failure() const = 0;
};

// How a started call goes on while nobody waits for it. kWhileWaited: perhaps not at all. Its
// answer wakes the waiting thread and no other before it, which is what Attention does.
enum class Progress { kByItself, kWhileWaited };

// Retries, for Compute has no side effects: UNAVAILABLE; RESOURCE_EXHAUSTED with a pushback >= 0;
// UNKNOWN and INTERNAL without the trailer attnd-version (a node was lost, or something in between
// spoke). At most max_tries, within the deadline, within the retry budget.
//
// Errors keep the server's code and message. INVALID_ARGUMENT without a call when a view's data is
// null, an extent is negative, or a message would pass 2 GB (a stream may). INTERNAL when an answer
// does not fit its request. NOT_FOUND for a region that the server does not have (any more). After
// a call that failed, a server may use its places in regions for a moment longer, and refuses
// another call there (INVALID_ARGUMENT). Thread-safe; one client serves a whole process.
//
// A call ends only when nothing reads the tensors' memory any more. That is at its deadline, unless
// the other machine froze while the message was on its way: then it is when the connection is given
// up, kStalledTimeout (client/channel.h, 10 s) after the last byte went out. A frozen process
// behind a Unix socket holds it until it goes on or dies.
class Client {
 public:
  using Callback = std::function<void(absl::StatusOr<AttentionResult>)>;

  // `address`: "host:port" or "unix:/path". Does not wait for the server; the first call does,
  // within its deadline. INVALID_ARGUMENT for an address or metadata of another form.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& address,
                                                         const ClientOptions& options = {});
  virtual ~Client() = default;

  virtual absl::StatusOr<AttentionResult> Attention(const AttentionRequest& request) = 0;

  // `callback` is called exactly once, on a thread of the client's or of gRPC's, several at a time,
  // errors of the request included; it must not block, nor destroy the client. The request is
  // copied, the tensors' memory is not: it must stay until then. The destructor of Client waits for
  // its calls.
  virtual std::shared_ptr<Call> AttentionAsync(const AttentionRequest& request,
                                               Callback callback) = 0;

  // As Attention, which is this and a wait. Copies tensors into a region where that is the way, and
  // connects to a server on this host (60 ms at most, usually 0.1) for its first call in regions;
  // else does not block.
  virtual std::unique_ptr<StartedCall> Start(AttentionRequest request, Progress progress) = 0;

  virtual absl::StatusOr<ServerInfo> GetServerInfo(absl::Duration timeout) = 0;

  // Memory shared with the server, for tensors that are used in place. `timeout` as in
  // LocalRegionOptions, whose errors these are; FAILED_PRECONDITION also where the options have no
  // local socket.
  virtual absl::StatusOr<std::unique_ptr<LocalRegion>> NewRegion(int64_t size_bytes,
                                                                 absl::Duration timeout) = 0;

  // Lends the server memory on its GPU. Errors are those of LocalRegion::Share; FAILED_PRECONDITION
  // also where the options have no local socket.
  virtual absl::StatusOr<std::unique_ptr<LocalRegion>> ShareCudaMemory(const CudaMemory& memory,
                                                                       absl::Duration timeout) = 0;

  // OK when the server reports SERVING (grpc.health.v1), UNAVAILABLE with its answer otherwise.
  virtual absl::Status CheckHealth(absl::Duration timeout) = 0;
};

// For programs whose calls are waited for: each thread that waits watches its call's connection
// itself. gRPC's default, epoll, has one set of connections for the whole process, and once there
// was an asynchronous call, or a stream of more than 4 MiB, it is a thread of gRPC's that hears of
// an answer and wakes the one that waits (65 to 90 us on an H200 machine). Asynchronous calls are
// slower with it (a tenth one by one, up to a third many at once).
//
// Sets GRPC_POLL_STRATEGY to "poll" in the environment, for all of the process, unless it is set.
// Before anything else of gRPC's, and while no other thread reads the environment.
void UsePolling();

}  // namespace attnd

#endif  // ATTND_CLIENT_CLIENT_H_
