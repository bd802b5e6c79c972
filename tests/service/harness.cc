#include "tests/service/harness.h"

#include <httplib.h>

#include <cmath>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/reference/reference.h"
#include "server/executor/cpu_device.h"
#include "server/grpc_order.h"
#include "server/log.h"
#include "server/wire/wire.h"
#include "tests/cases/values.h"

namespace attnd::testing {

server::ServerOptions TestOptions() {
  server::ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.http_listen = "127.0.0.1:0";
  options.receive_bytes = int64_t{64} << 20;
  options.max_unary_bytes = int64_t{32} << 20;
  options.arena_bytes = int64_t{192} << 20;
  options.drain_delay_ms = 0;
  options.default_deadline_ms = 0;
  options.local_socket = server::kNoLocalSocket;
  return options;
}

GatedDevice::GatedDevice(const std::string& backend) {
  auto device = server::CreateCpuDevice(backend, 2);
  if (!device.ok()) ADD_FAILURE() << device.status();
  device_ = std::move(*device);
}

void GatedDevice::Hold() {
  MutexLock lock(mutex_);
  hold_ = true;
}

void GatedDevice::Release() {
  MutexLock lock(mutex_);
  hold_ = false;
  changed_.NotifyAll();
}

void GatedDevice::WaitUntilHeld() {
  MutexLock lock(mutex_);
  while (!held_) changed_.Wait(mutex_);
}

void GatedDevice::FailWith(absl::Status status) {
  MutexLock lock(mutex_);
  failure_ = std::move(status);
}

std::vector<std::string> GatedDevice::ran() const {
  MutexLock lock(mutex_);
  return ran_;
}

absl::Status GatedDevice::Supports(const kernels::AttentionProblem& problem) const {
  if (problem.head_dim == unsupported_head_dim) {
    return absl::UnimplementedError("this head_dim would need another device");
  }
  return device_->Supports(problem);
}

absl::Status GatedDevice::Begin(server::Stage stage, server::RunningBatch& batch) {
  if (stage == server::Stage::kRun) {
    MutexLock lock(mutex_);
    for (const server::RunningJob& job : batch.jobs) ran_.push_back(job.job->request().request_id);
    held_ = hold_;
    changed_.NotifyAll();
    while (hold_) changed_.Wait(mutex_);
    held_ = false;
    if (!failure_.ok()) return failure_;
  }
  return device_->Begin(stage, batch);
}

std::string Outcome::Trailer(const std::string& key) const {
  const auto found = trailers.find(key);
  return found == trailers.end() ? "(none)" : found->second;
}

namespace {

void SetUp(grpc::ClientContext& context, const CallOptions& options, size_t size_bytes) {
  if (options.timeout.count() != 0) {
    context.set_deadline(std::chrono::system_clock::now() + options.timeout);
  }
  if (options.declare == CallOptions::Declare::kSize) {
    context.AddMetadata("attnd-request-bytes", absl::StrCat(size_bytes));
  } else if (options.declare == CallOptions::Declare::kText) {
    context.AddMetadata("attnd-request-bytes", options.declared_text);
  }
  for (const auto& [key, value] : options.metadata) context.AddMetadata(key, value);
}

std::multimap<std::string, std::string> TrailersOf(const grpc::ClientContext& context) {
  std::multimap<std::string, std::string> trailers;
  for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
    trailers.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
  }
  return trailers;
}

}  // namespace

PendingCall::PendingCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& bytes,
                         const CallOptions& options, const std::string& method)
    : stub_(channel), done_(promise_.get_future()) {
  SetUp(context_, options, bytes.size());
  const grpc::Slice slice(bytes);
  request_ = grpc::ByteBuffer(&slice, 1);
  server::PassBaton(this);
  stub_.UnaryCall(&context_, "/attnd.v1.AttentionService/" + method, {}, &request_, &response_,
                  [this](grpc::Status status) {
                    server::PassBaton(this);
                    promise_.set_value(std::move(status));
                  });
}

PendingCall::~PendingCall() {
  Cancel();
  done_.wait();
}

bool PendingCall::IsDone() const {
  return done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

Outcome PendingCall::Wait() {
  Outcome outcome;
  if (done_.wait_for(kPatience) != std::future_status::ready) {
    ADD_FAILURE() << "the call does not end";
    Cancel();
  }
  outcome.status = done_.get();
  outcome.trailers = TrailersOf(context_);
  grpc::Slice bytes;
  if (outcome.status.ok() && response_.DumpToSingleSlice(&bytes).ok()) {
    EXPECT_TRUE(outcome.response.ParseFromArray(bytes.begin(), static_cast<int>(bytes.size())));
  }
  return outcome;
}

RawStream::RawStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const CallOptions& options)
    : stub_(channel) {
  SetUp(context_, options, 0);
  stream_ = stub_.PrepareCall(&context_, method, &queue_);
  stream_->StartCall(nullptr);
  Next();
}

RawStream::~RawStream() {
  Cancel();
  if (!finished_) Finish();
}

bool RawStream::Next() {
  void* tag = nullptr;
  bool ok = false;
  const auto deadline = std::chrono::system_clock::now() + kPatience;
  if (queue_.AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT) {
    ADD_FAILURE() << "the stream stands still";
    Cancel();
    queue_.Next(&tag, &ok);
  }
  return ok;
}

bool RawStream::Write(const std::string& message) {
  const grpc::Slice slice(message);
  stream_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  return Next();
}

bool RawStream::Read(std::string* message) {
  grpc::ByteBuffer buffer;
  stream_->Read(&buffer, nullptr);
  grpc::Slice bytes;
  if (!Next() || !buffer.DumpToSingleSlice(&bytes).ok()) return false;
  message->assign(bytes.begin(), bytes.end());
  return true;
}

void RawStream::WritesDone() {
  writes_done_ = true;
  stream_->WritesDone(nullptr);
  Next();
}

std::multimap<std::string, std::string> RawStream::Trailers() const { return TrailersOf(context_); }

grpc::Status RawStream::Finish() {
  finished_ = true;
  if (!writes_done_) WritesDone();
  grpc::Status status;
  stream_->Finish(&status, nullptr);
  Next();
  return status;
}

std::vector<std::string> StreamMessages(const v1::ComputeRequest& request, size_t chunk_bytes) {
  v1::ComputeStreamRequest message;
  *message.mutable_header() = request.header();
  std::vector<std::string> messages = {message.SerializeAsString()};
  const std::string* const operands[] = {&request.q(), &request.k(), &request.v()};
  for (int i = 0; i < 3; ++i) {
    for (size_t at = 0; at < operands[i]->size(); at += chunk_bytes) {
      v1::Chunk* const chunk = message.mutable_chunk();
      chunk->set_operand(static_cast<v1::Operand>(v1::OPERAND_Q + i));
      chunk->set_offset_bytes(static_cast<int64_t>(at));
      chunk->set_data(operands[i]->substr(at, chunk_bytes));
      messages.push_back(message.SerializeAsString());
    }
  }
  return messages;
}

Outcome ComputeStream(const std::shared_ptr<grpc::Channel>& channel,
                      const std::vector<std::string>& messages, const CallOptions& options) {
  RawStream stream(channel, kStreamMethod, options);
  WriteAll(stream, messages);
  return ReadAnswer(stream);
}

void WriteAll(RawStream& stream, const std::vector<std::string>& messages) {
  bool taken = true;
  for (size_t i = 0; i < messages.size() && taken; ++i) taken = stream.Write(messages[i]);
  stream.WritesDone();
}

Outcome ReadAnswer(RawStream& stream) {
  Outcome outcome;
  std::string bytes;
  for (bool first = true; stream.Read(&bytes); first = false) {
    v1::ComputeStreamResponse message;
    EXPECT_TRUE(message.ParseFromString(bytes));
    EXPECT_EQ(message.has_header(), first);
    if (message.has_header()) *outcome.response.mutable_header() = message.header();
    if (!message.has_chunk()) continue;
    const v1::Chunk& chunk = message.chunk();
    const bool is_o = chunk.operand() == v1::OPERAND_O;
    std::string* const to = is_o ? outcome.response.mutable_o() : outcome.response.mutable_lse();
    EXPECT_EQ(chunk.offset_bytes(), static_cast<int64_t>(to->size()));
    to->append(chunk.data());
  }
  outcome.status = stream.Finish();
  outcome.trailers = stream.Trailers();
  return outcome;
}

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

TestServer::TestServer(const server::ServerOptions& options, std::unique_ptr<server::Device> device,
                       server::Server::DeviceLost on_device_lost) {
  static const absl::Status log = server::SetUpLog("off");
  server::Server::Devices devices;
  if (device != nullptr) devices.push_back(std::move(device));
  auto server = server::Server::Start(options, std::move(devices), std::move(on_device_lost));
  if (!server.ok()) {
    ADD_FAILURE() << server.status();
    std::abort();
  }
  server_ = *std::move(server);
  channel_ = options.listen.rfind("unix:", 0) == 0 ? Connect(options.listen) : NewChannel();
}

std::string TestServer::address() const { return absl::StrCat("127.0.0.1:", server_->port()); }

std::shared_ptr<grpc::Channel> TestServer::NewChannel() const { return Connect(address()); }

Outcome TestServer::Compute(const v1::ComputeRequest& request, const CallOptions& options) const {
  return ComputeBytes(request.SerializeAsString(), options);
}

Outcome TestServer::ComputeBytes(const std::string& bytes, const CallOptions& options) const {
  return PendingCall(channel_, bytes, options).Wait();
}

std::unique_ptr<PendingCall> TestServer::Begin(const v1::ComputeRequest& request,
                                               const CallOptions& options) const {
  return std::make_unique<PendingCall>(channel_, request.SerializeAsString(), options);
}

std::pair<int, std::string> HttpGet(int port, const std::string& path) {
  httplib::Client client("127.0.0.1", port);
  const httplib::Result result = client.Get(path);
  return result ? std::make_pair(result->status, result->body) : std::make_pair(-1, std::string());
}

double MetricIn(const std::string& metrics, const std::string& series) {
  for (const absl::string_view line : absl::StrSplit(metrics, '\n')) {
    const size_t space = line.rfind(' ');
    double value = 0;
    if (space != absl::string_view::npos && line.substr(0, space) == series &&
        absl::SimpleAtod(line.substr(space + 1), &value)) {
      return value;
    }
  }
  return 0;
}

::testing::AssertionResult Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return ::testing::AssertionFailure() << "it never came true";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ::testing::AssertionSuccess();
}

namespace {

kernels::DType ToDType(v1::DataType dtype) {
  if (dtype == v1::DATA_TYPE_FLOAT16) return kernels::DType::kF16;
  if (dtype == v1::DATA_TYPE_BFLOAT16) return kernels::DType::kBF16;
  return kernels::DType::kF32;
}

void SetTensor(v1::DataType dtype, const std::vector<int64_t>& shape,
               const std::vector<float>& values, v1::TensorSpec* spec, std::string* bytes) {
  spec->set_dtype(dtype);
  for (const int64_t extent : shape) spec->add_shape(extent);
  bytes->resize(values.size() * static_cast<size_t>(kernels::SizeBytes(ToDType(dtype))));
  for (size_t i = 0; i < values.size(); ++i) {
    kernels::StoreElement(bytes->data(), static_cast<int64_t>(i), ToDType(dtype), values[i]);
  }
}

double Bound(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kF32:
      return 2e-6;
    case kernels::DType::kF16:
      return 4.5e-4;
    case kernels::DType::kBF16:
      return 3.5e-3;
  }
  return 0;
}

std::vector<double> Doubles(const std::string& bytes, kernels::DType dtype) {
  std::vector<double> values(bytes.size() / static_cast<size_t>(kernels::SizeBytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = kernels::LoadElement(bytes.data(), static_cast<int64_t>(i), dtype);
  }
  return values;
}

}  // namespace

v1::ComputeRequest MakeRequest(const Shape& shape, uint64_t seed) {
  kernels::AttentionProblem problem;
  problem.batch = shape.batch;
  problem.q_heads = shape.q_heads;
  problem.kv_heads = shape.kv_heads;
  problem.q_len = shape.q_len;
  problem.kv_len = shape.kv_len;
  problem.head_dim = shape.head_dim;
  const Values values = DrawValues(problem, Distribution::kNormal, seed);
  v1::ComputeRequest request;
  v1::ComputeHeader* const header = request.mutable_header();
  const std::vector<int64_t> q = {shape.batch, shape.q_heads, shape.q_len, shape.head_dim};
  const std::vector<int64_t> kv = {shape.batch, shape.kv_heads, shape.kv_len, shape.head_dim};
  SetTensor(shape.dtype, q, values.q, header->mutable_q(), request.mutable_q());
  SetTensor(shape.dtype, kv, values.k, header->mutable_k(), request.mutable_k());
  SetTensor(shape.dtype, kv, values.v, header->mutable_v(), request.mutable_v());
  return request;
}

::testing::AssertionResult IsRight(const Outcome& outcome, const v1::ComputeRequest& request) {
  if (!outcome.status.ok()) {
    return ::testing::AssertionFailure()
           << outcome.code() << ": " << outcome.status.error_message();
  }
  // The wire's own decoder says what is asked; the answer's meaning comes from the reference.
  const std::string bytes = request.SerializeAsString();
  server::BufferPool pool(int64_t{4} << 30);
  const server::wire::ByteSpan span(reinterpret_cast<const unsigned char*>(bytes.data()),
                                    bytes.size());
  server::wire::Limits limits;
  limits.max_message_bytes = int64_t{2} << 30;
  const auto decoded = server::wire::Decode({span}, limits, server::TimePoint(), pool);
  if (!decoded.ok()) return ::testing::AssertionFailure() << decoded.status();
  const server::ProblemSlot& slot = (*decoded)->problems.at(0);
  const kernels::AttentionProblem& problem = slot.problem;
  const auto rows = static_cast<size_t>(problem.batch * problem.q_heads * problem.q_len);
  std::vector<double> o(rows * static_cast<size_t>(problem.head_dim));
  std::vector<double> lse(rows);
  server::Answer none;
  kernels::AttentionArgs args = server::BindToHost(**decoded, slot, none.o, none.lse);
  kernels::ReferenceAttention(problem, args, o.data(), lse.data());

  const v1::ComputeResponse& response = outcome.response;
  if (response.o().size() != o.size() * static_cast<size_t>(kernels::SizeBytes(problem.dtype))) {
    return ::testing::AssertionFailure() << "O has " << response.o().size() << " bytes";
  }
  const double error = kernels::RelativeError(Doubles(response.o(), problem.dtype), o);
  if (!(error <= Bound(problem.dtype))) {
    return ::testing::AssertionFailure() << "O is off by " << error;
  }
  if (!request.header().want_lse()) return ::testing::AssertionSuccess();
  if (response.lse().size() != rows * sizeof(float)) {
    return ::testing::AssertionFailure() << "LSE has " << response.lse().size() << " bytes";
  }
  const double lse_error =
      kernels::RelativeError(Doubles(response.lse(), kernels::DType::kF32), lse);
  if (!(lse_error <= 1e-5)) return ::testing::AssertionFailure() << "LSE is off by " << lse_error;
  return ::testing::AssertionSuccess();
}

}  // namespace attnd::testing
