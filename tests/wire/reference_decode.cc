#include "tests/wire/reference_decode.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attnd.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "server/wire/unknown_fields.h"

namespace attnd::testing {
namespace {

using kernels::Strides;
using server::Buffer;
using server::ProblemSlot;
using server::Request;

constexpr server::TimePoint kArrival{std::chrono::seconds(1000)};

struct Reference {
  absl::StatusOr<std::unique_ptr<Request>> request;
  bool checked = false;  // the checks were reached: the message is theirs
  v1::ComputeRequest message;
};

Reference ReferenceDecode(const std::string& bytes, const server::wire::Limits& limits) {
  Reference reference;
  v1::ComputeRequest& message = reference.message;
  const google::protobuf::LogSilencer silencer;
  if (!message.ParseFromString(bytes)) {
    reference.request = absl::InvalidArgumentError("ParseFromString");
    return reference;
  }
  absl::Status status = server::wire::RefuseUnknownFields(message, "ComputeRequest");
  if (status.ok() && !message.has_header())
    status = absl::InvalidArgumentError("header is missing");
  reference.checked = true;
  if (!status.ok()) {
    reference.request = status;
    return reference;
  }
  reference.request =
      server::wire::Check(message.header(), static_cast<int64_t>(message.q().size()),
                          static_cast<int64_t>(message.k().size()),
                          static_cast<int64_t>(message.v().size()), limits, kArrival);
  return reference;
}

bool SameBytes(const Buffer& buffer, const std::string& bytes) {
  return buffer.size_bytes() == static_cast<int64_t>(bytes.size()) &&
         (bytes.empty() || std::memcmp(buffer.data(), bytes.data(), bytes.size()) == 0);
}

bool SameSlot(const ProblemSlot& a, const ProblemSlot& b) {
  return a.problem == b.problem && a.q_offset_elems == b.q_offset_elems &&
         a.k_offset_elems == b.k_offset_elems && a.v_offset_elems == b.v_offset_elems &&
         a.o_offset_elems == b.o_offset_elems && a.lse_offset_elems == b.lse_offset_elems &&
         a.q_strides == b.q_strides && a.k_strides == b.k_strides && a.v_strides == b.v_strides &&
         a.o_strides == b.o_strides && a.lse_batch_stride == b.lse_batch_stride &&
         a.lse_head_stride == b.lse_head_stride;
}

// One past the last element that a tensor of these extents reaches; 0 if it has none.
int64_t EndOf(int64_t offset, const Strides& strides, int64_t batch, int64_t heads, int64_t len,
              int64_t row_elems) {
  if (batch == 0 || heads == 0 || len == 0) return 0;
  return offset + (batch - 1) * strides.batch + (heads - 1) * strides.head +
         (len - 1) * strides.row + row_elems;
}

}  // namespace

std::string Overreach(const Request& request) {
  for (size_t i = 0; i < request.problems.size(); ++i) {
    const ProblemSlot& s = request.problems[i];
    const kernels::AttentionProblem& p = s.problem;
    const int64_t element = kernels::SizeBytes(p.dtype);
    const struct {
      const char* name;
      int64_t end_bytes, size_bytes;
    } tensors[] = {
        {"q",
         element * EndOf(s.q_offset_elems, s.q_strides, p.batch, p.q_heads, p.q_len, p.head_dim),
         request.q.size_bytes()},
        {"k",
         element * EndOf(s.k_offset_elems, s.k_strides, p.batch, p.kv_heads, p.kv_len, p.head_dim),
         request.k.size_bytes()},
        {"v",
         element * EndOf(s.v_offset_elems, s.v_strides, p.batch, p.kv_heads, p.kv_len, p.head_dim),
         request.v.size_bytes()},
        {"o",
         element * EndOf(s.o_offset_elems, s.o_strides, p.batch, p.q_heads, p.q_len, p.head_dim),
         request.output.o_bytes},
        {"lse",
         request.output.want_lse
             ? 4 * EndOf(s.lse_offset_elems, {s.lse_batch_stride, s.lse_head_stride, 1}, p.batch,
                         p.q_heads, p.q_len, 1)
             : 0,
         request.output.lse_bytes}};
    for (const auto& tensor : tensors) {
      if (tensor.end_bytes <= tensor.size_bytes) continue;
      return absl::StrCat("problem ", i, " reaches byte ", tensor.end_bytes, " of ", tensor.name,
                          ", which has ", tensor.size_bytes);
    }
    if (p.alibi && static_cast<int64_t>(request.alibi_slopes.size()) != p.q_heads) return "slopes";
  }
  return "";
}

namespace {

std::string Difference(const Request& actual, const Request& expected,
                       const v1::ComputeRequest& message) {
  if (!SameBytes(actual.q, message.q())) return "q's bytes";
  if (!SameBytes(actual.k, message.k())) return "k's bytes";
  if (!SameBytes(actual.v, message.v())) return "v's bytes";
  if (actual.problems.size() != expected.problems.size()) return "the number of problems";
  for (size_t i = 0; i < actual.problems.size(); ++i) {
    if (!SameSlot(actual.problems[i], expected.problems[i])) return absl::StrCat("problem ", i);
  }
  if (actual.request_id != expected.request_id) return "request_id";
  if (actual.priority != expected.priority) return "priority";
  if (actual.deadline != expected.deadline) return "deadline";
  if (actual.alibi_slopes != expected.alibi_slopes) return "alibi_slopes";
  const server::OutputSpec &a = actual.output, &e = expected.output;
  if (a.dtype != e.dtype || a.o_shape != e.o_shape || a.o_bytes != e.o_bytes ||
      a.want_lse != e.want_lse || a.lse_shape != e.lse_shape || a.lse_bytes != e.lse_bytes) {
    return "output";
  }
  return Overreach(actual);
}

}  // namespace

Comparison CompareWithProtobuf(const std::string& bytes,
                               absl::Span<const server::wire::ByteSpan> spans) {
  const server::wire::Limits limits;
  server::BufferPool pool(int64_t{1} << 30);
  const auto actual = server::wire::Decode(spans, limits, kArrival, pool);
  const Reference reference = ReferenceDecode(bytes, limits);
  const auto& expected = reference.request;

  Comparison comparison{actual.status(), ""};
  if (actual.status().code() != expected.status().code() ||
      (reference.checked && actual.status() != expected.status())) {
    comparison.difference = absl::StrCat("Decode: ", actual.status().ToString(),
                                         "; reference: ", expected.status().ToString());
  } else if (actual.ok()) {
    comparison.difference = Difference(**actual, **expected, reference.message);
  }
  return comparison;
}

}  // namespace attnd::testing
