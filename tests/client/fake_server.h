// An attnd that answers what a test tells it to: no attention, no queue.
#ifndef ATTND_TESTS_CLIENT_FAKE_SERVER_H_
#define ATTND_TESTS_CLIENT_FAKE_SERVER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "attnd/v1/attnd.grpc.pb.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace attnd::testing {

// O = Q, LSE = 0 if wanted.
inline grpc::Status Echo(const v1::ComputeRequest& request, v1::ComputeResponse* response) {
  v1::ComputeResponseHeader* header = response->mutable_header();
  *header->mutable_o() = request.header().q();
  header->set_backend("fake");
  header->set_kernel("attn_fwd_f32_d64_full_fake");
  header->set_device("cpu");
  header->set_batch_size(1);
  header->mutable_timing()->set_run_us(7);
  response->set_o(request.q());
  if (request.header().want_lse()) {
    int64_t rows = 1;
    for (int axis = 0; axis + 1 < request.header().q().shape_size(); ++axis) {
      rows *= request.header().q().shape(axis);
      header->mutable_lse()->add_shape(request.header().q().shape(axis));
    }
    header->mutable_lse()->set_dtype(v1::DATA_TYPE_FLOAT32);
    response->set_lse(std::string(rows * sizeof(float), '\0'));
  }
  return grpc::Status::OK;
}

class FakeServer final : public v1::AttentionService::Service {
 public:
  using Handler = std::function<grpc::Status(grpc::ServerContext*, const v1::ComputeRequest&,
                                             v1::ComputeResponse*)>;

  using Stream = grpc::ServerReaderWriter<v1::ComputeStreamResponse, v1::ComputeStreamRequest>;

  explicit FakeServer(Handler handler = nullptr) : handler_(std::move(handler)) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    // Much more than sockets hold: a message can be on its way, in the sender's hands, in full.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 20);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeServer() override { Stop(); }

  // Running calls are cancelled; their handlers must return.
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_ = nullptr;
  }

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int calls() const { return calls_; }
  int streams() const { return streams_; }
  void SetServing(bool serving) { server_->GetHealthCheckService()->SetServingStatus(serving); }

  grpc::Status Compute(grpc::ServerContext* context, const v1::ComputeRequest* request,
                       v1::ComputeResponse* response) override {
    ++calls_;
    return handler_ ? handler_(context, *request, response) : Echo(*request, response);
  }

  // From now on streams end like this when their header is there, and read no more.
  void EndStreamsEarly(const grpc::Status& status) {
    early_ = status;
    ends_early_ = true;
  }

  // The same handler; the answer in chunks that are small, and come last first.
  grpc::Status ComputeStream(grpc::ServerContext* context, Stream* stream) override {
    ++streams_;
    v1::ComputeRequest request;
    for (v1::ComputeStreamRequest part; stream->Read(&part);) {
      if (ends_early_) return early_;
      if (part.has_header()) *request.mutable_header() = part.header();
      if (!part.has_chunk()) continue;
      std::string* const operands[] = {request.mutable_q(), request.mutable_k(),
                                       request.mutable_v()};
      std::string& to = *operands[part.chunk().operand() - v1::OPERAND_Q];
      if (part.chunk().offset_bytes() != static_cast<int64_t>(to.size())) {
        return {grpc::StatusCode::INVALID_ARGUMENT, "a chunk is out of order"};
      }
      to += part.chunk().data();
    }
    v1::ComputeResponse response;
    const grpc::Status status =
        handler_ ? handler_(context, request, &response) : Echo(request, &response);
    if (!status.ok()) return status;
    response.mutable_header()->set_transport(v1::TRANSPORT_STREAM);
    v1::ComputeStreamResponse part;
    *part.mutable_header() = response.header();
    stream->Write(part);
    WriteChunks(v1::OPERAND_LSE, response.lse(), stream);
    WriteChunks(v1::OPERAND_O, response.o(), stream);
    return status;
  }

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse* response) override {
    response->set_instance_id("instance");
    response->set_version("1.2.3");
    response->set_backend("fake");
    response->mutable_limits()->set_max_head_dim(256);
    v1::DeviceInfo* device = response->add_devices();
    device->set_id("cpu");
    device->set_processors(2);
    device->add_backends("fake");
    return grpc::Status::OK;
  }

 private:
  static void WriteChunks(v1::Operand operand, const std::string& bytes, Stream* stream) {
    constexpr size_t kBytes = 100'000;
    for (size_t at = bytes.size() / kBytes * kBytes;; at -= kBytes) {
      v1::ComputeStreamResponse part;
      part.mutable_chunk()->set_operand(operand);
      part.mutable_chunk()->set_offset_bytes(static_cast<int64_t>(at));
      part.mutable_chunk()->set_data(bytes.substr(at, kBytes));
      if (!bytes.empty()) stream->Write(part);
      if (at == 0) return;
    }
  }

  const Handler handler_;
  std::atomic<int> calls_{0};
  std::atomic<int> streams_{0};
  grpc::Status early_;
  std::atomic<bool> ends_early_{false};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace attnd::testing

#endif  // ATTND_TESTS_CLIENT_FAKE_SERVER_H_
