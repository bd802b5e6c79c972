#include "tests/wire/kserve_reference.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "inference/grpc_service.pb.h"
#include "server/wire/kserve.h"

namespace attnd::testing {
namespace {

using inference::ModelInferRequest;
using server::Answer;
using server::Buffer;
using server::Request;

std::string BytesOf(const Buffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(buffer.size_bytes())};
}

// What protobuf says are the bytes of this input.
std::string ContentsOf(const ModelInferRequest& message, const std::string& name) {
  for (int i = 0; i < message.inputs_size(); ++i) {
    if (message.inputs(i).name() != name) continue;
    if (i < message.raw_input_contents_size()) return message.raw_input_contents(i);
    const auto& list = message.inputs(i).contents().fp32_contents();
    return {reinterpret_cast<const char*>(list.data()),
            static_cast<size_t>(list.size()) * sizeof(float)};
  }
  return "(none)";
}

std::string AnswerDifference(const server::wire::Inference& inference, const Request& request,
                             server::BufferPool& pool) {
  const auto filled = [&pool](int64_t size_bytes) {
    auto buffer = pool.Allocate(size_bytes);
    if (buffer.ok() && size_bytes > 0) std::memset(buffer->data(), 0, size_bytes);
    return buffer.ok() ? *std::move(buffer) : Buffer();
  };
  Answer answer;
  answer.o = filled(request.output.o_bytes);
  answer.lse = filled(request.output.lse_bytes);
  const auto encoded = inference.Encode(request, answer);
  inference::ModelInferResponse response;
  if (!response.ParseFromString(encoded.head + BytesOf(answer.o) + encoded.middle +
                                BytesOf(answer.lse))) {
    return "the answer does not parse";
  }
  if (response.outputs_size() != response.raw_output_contents_size()) {
    return "outputs without raw contents";
  }
  return "";
}

std::string Difference(const std::string& bytes, const Request& request) {
  const google::protobuf::LogSilencer silencer;
  ModelInferRequest message;
  if (!message.ParseFromString(bytes)) return "protobuf does not parse it";
  if (request.request_id != message.id()) return "id";
  if (BytesOf(request.q) != ContentsOf(message, "Q")) return "Q's bytes";
  if (BytesOf(request.k) != ContentsOf(message, "K")) return "K's bytes";
  if (BytesOf(request.v) != ContentsOf(message, "V")) return "V's bytes";
  return Overreach(request);
}

}  // namespace

Comparison CompareInfer(const std::string& bytes, absl::Span<const server::wire::ByteSpan> spans) {
  server::BufferPool pool(int64_t{1} << 28);
  server::wire::Inference inference;
  const server::wire::ByteSpan whole(reinterpret_cast<const unsigned char*>(bytes.data()),
                                     bytes.size());
  const absl::Status expected =
      server::wire::Inference().Decode({&whole, 1}, {}, {}, pool).status();
  const auto request = inference.Decode(spans, {}, {}, pool);
  Comparison comparison{request.status(), ""};
  if (request.status() != expected) {
    comparison.difference =
        absl::StrCat("in pieces: ", request.status().ToString(), "; in one: ", expected.ToString());
  } else if (request.ok()) {
    comparison.difference = Difference(bytes, **request);
    if (comparison.difference.empty()) {
      comparison.difference = AnswerDifference(inference, **request, pool);
    }
  }
  return comparison;
}

}  // namespace attnd::testing
