#include <algorithm>
#include <climits>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attnd.pb.h"
#include "server/wire/extents.h"
#include "server/wire/region_tensors.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {
namespace {

using absl::InvalidArgumentError;
using absl::StrCat;
using google::protobuf::RepeatedField;
using kernels::AttentionProblem;

// protobuf's limit for a whole message is 2 GiB - 1; the answer's header gets 1 MiB of it.
constexpr int64_t kMaxAnswerBytes = INT_MAX - (int64_t{1} << 20);

absl::Status CheckCallFields(const v1::ComputeHeader& header, const Limits& limits,
                             const FieldNames& names) {
  if (header.priority() > static_cast<uint32_t>(limits.max_priority)) {
    return InvalidArgumentError(
        StrCat("priority is ", header.priority(), "; it must be in 0..", limits.max_priority));
  }
  if (header.has_timeout_us() && header.timeout_us() <= 0) {
    return InvalidArgumentError(StrCat(names.timeout, " is ", header.timeout_us(),
                                       "; it must be greater than 0, or absent for none"));
  }
  const int64_t id_bytes = static_cast<int64_t>(header.request_id().size());
  if (id_bytes > limits.max_request_id_bytes) {
    return InvalidArgumentError(StrCat(names.request_id, " is ", id_bytes, " bytes; the limit is ",
                                       limits.max_request_id_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<kernels::MaskSpec> ReadMask(const v1::ComputeHeader& header) {
  kernels::MaskSpec mask;
  switch (header.causal()) {
    case v1::CAUSAL_ALIGNMENT_UNSPECIFIED:
      break;
    case v1::CAUSAL_ALIGNMENT_TOP_LEFT:
      mask.causal.alignment = kernels::Causal::kTopLeft;
      break;
    case v1::CAUSAL_ALIGNMENT_BOTTOM_RIGHT:
      mask.causal.alignment = kernels::Causal::kBottomRight;
      break;
    default:
      return UnknownEnumValue("causal", "CausalAlignment", header.causal());
  }
  const v1::Window& window = header.window();
  if (window.has_left()) mask.window.left = std::min(window.left(), kernels::kUnbounded);
  if (window.has_right()) mask.window.right = std::min(window.right(), kernels::kUnbounded);
  return mask;
}

absl::Status CheckSlopes(const RepeatedField<float>& slopes, int64_t q_heads) {
  if (!slopes.empty() && slopes.size() != q_heads) {
    return InvalidArgumentError(StrCat("alibi_slopes has ", slopes.size(), " entries; q has ",
                                       q_heads,
                                       " heads (one slope each, or "
                                       "none at all)"));
  }
  for (int i = 0; i < slopes.size(); ++i) {
    if (!std::isfinite(slopes[i])) {
      return InvalidArgumentError(
          StrCat("alibi_slopes[", i, "] is ", slopes[i], "; it must be finite"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const char* name, const RepeatedField<int64_t>& ends, const char* tensor,
                          int64_t total) {
  if (ends.empty()) {
    return InvalidArgumentError(
        StrCat(name, " is missing; LAYOUT_THD needs batch + 1 entries, from 0 to ", total));
  }
  if (ends[0] != 0) return InvalidArgumentError(StrCat(name, "[0] is ", ends[0], "; it must be 0"));
  for (int i = 1; i < ends.size(); ++i) {
    if (ends[i] < ends[i - 1]) {
      return InvalidArgumentError(StrCat(name, "[", i, "] is ", ends[i], ", less than ", name, "[",
                                         i - 1, "], which is ", ends[i - 1]));
    }
  }
  const int last = ends.size() - 1;
  if (ends[last] != total) {
    return InvalidArgumentError(StrCat(name, "[", last, "], the last, is ", ends[last], "; ",
                                       tensor, ".shape[0] is ", total, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status CheckSequences(const v1::ComputeHeader& header, const Extents& extents,
                            const Limits& limits, const FieldNames& names) {
  const RepeatedField<int64_t>& q_ends = header.cu_seqlens_q();
  const RepeatedField<int64_t>& kv_ends = header.cu_seqlens_kv();
  if (!extents.packed()) {
    if (q_ends.empty() && kv_ends.empty()) return absl::OkStatus();
    const bool is_q = !q_ends.empty();
    return InvalidArgumentError(StrCat(is_q ? names.cu_seqlens_q : names.cu_seqlens_kv, " has ",
                                       is_q ? q_ends.size() : kv_ends.size(), " entries; ",
                                       v1::Layout_Name(extents.layout),
                                       " takes none (only LAYOUT_THD does)"));
  }
  absl::Status status = CheckLengths(names.cu_seqlens_q, q_ends, names.q, extents.q_len);
  if (status.ok()) status = CheckLengths(names.cu_seqlens_kv, kv_ends, names.k, extents.kv_len);
  if (!status.ok()) return status;
  if (q_ends.size() != kv_ends.size()) {
    return InvalidArgumentError(StrCat(names.cu_seqlens_q, " has ", q_ends.size(), " entries and ",
                                       names.cu_seqlens_kv, " has ", kv_ends.size(),
                                       "; they must have the same number"));
  }
  if (q_ends.size() - 1 > limits.max_sequences) {
    return InvalidArgumentError(StrCat(names.cu_seqlens_q, " holds ", q_ends.size() - 1,
                                       " sequences; the limit is ", limits.max_sequences));
  }
  return absl::OkStatus();
}

// The problem of the whole request; of a packed one with the total lengths.
absl::StatusOr<AttentionProblem> ReadProblem(const v1::ComputeHeader& header,
                                             const Extents& extents) {
  absl::StatusOr<kernels::MaskSpec> mask = ReadMask(header);
  if (!mask.ok()) return mask.status();
  AttentionProblem problem;
  problem.dtype = extents.dtype;
  problem.batch = extents.batch;
  problem.q_heads = extents.q_heads;
  problem.kv_heads = extents.kv_heads;
  problem.q_len = extents.q_len;
  problem.kv_len = extents.kv_len;
  problem.head_dim = extents.head_dim;
  problem.mask = *mask;
  problem.softcap = header.softcap();
  problem.alibi = !header.alibi_slopes().empty();
  // A head_dim of 0 has no default scale; Validate() refuses it by name first.
  problem.scale = header.has_scale() || extents.head_dim == 0
                      ? header.scale()
                      : kernels::DefaultScale(extents.head_dim);
  if (absl::Status status = kernels::Validate(problem); !status.ok()) return status;
  return problem;
}

ProblemSlot DenseSlot(const AttentionProblem& p, v1::Layout layout) {
  const auto strides = layout == v1::LAYOUT_BSHD ? kernels::BSHD : kernels::BHSD;
  ProblemSlot slot;
  slot.problem = p;
  slot.q_strides = slot.o_strides = strides(p.q_heads, p.q_len, p.head_dim);
  slot.k_strides = slot.v_strides = strides(p.kv_heads, p.kv_len, p.head_dim);
  slot.lse_head_stride = p.q_len;
  slot.lse_batch_stride = p.q_heads * p.q_len;
  return slot;
}

std::vector<ProblemSlot> PackedSlots(const AttentionProblem& whole,
                                     const v1::ComputeHeader& header) {
  std::vector<ProblemSlot> slots;
  slots.reserve(static_cast<size_t>(header.cu_seqlens_q_size() - 1));
  for (int i = 0; i + 1 < header.cu_seqlens_q_size(); ++i) {
    AttentionProblem problem = whole;
    problem.q_len = header.cu_seqlens_q(i + 1) - header.cu_seqlens_q(i);
    problem.kv_len = header.cu_seqlens_kv(i + 1) - header.cu_seqlens_kv(i);
    ProblemSlot slot = DenseSlot(problem, v1::LAYOUT_BSHD);
    slot.q_offset_elems = slot.o_offset_elems =
        header.cu_seqlens_q(i) * whole.q_heads * whole.head_dim;
    slot.k_offset_elems = slot.v_offset_elems =
        header.cu_seqlens_kv(i) * whole.kv_heads * whole.head_dim;
    slot.lse_offset_elems = header.cu_seqlens_q(i);
    slot.lse_head_stride = whole.q_len;  // LSE is [q_heads, total_q]
    slot.lse_batch_stride = whole.q_heads * whole.q_len;
    slots.push_back(slot);
  }
  return slots;
}

absl::StatusOr<OutputSpec> ReadOutput(const v1::ComputeHeader& header, const Extents& extents,
                                      const RegionTensors& regions, int64_t q_bytes,
                                      int64_t max_answer_bytes) {
  OutputSpec output;
  output.dtype = extents.dtype;
  output.o_shape.assign(header.q().shape().begin(), header.q().shape().end());
  output.o_bytes = q_bytes;
  output.want_lse = header.want_lse();
  if (output.want_lse) {
    output.lse_shape = {extents.q_heads, extents.q_len};
    if (!extents.packed()) output.lse_shape.insert(output.lse_shape.begin(), extents.batch);
    // Validate() keeps products below 2^60.
    output.lse_bytes =
        extents.batch * extents.q_heads * extents.q_len * static_cast<int64_t>(sizeof(float));
  }
  const int64_t sent_o_bytes = regions.o ? 0 : output.o_bytes;
  const int64_t sent_lse_bytes = regions.lse ? 0 : output.lse_bytes;
  if (sent_o_bytes > max_answer_bytes - sent_lse_bytes) {
    return InvalidArgumentError(StrCat("the answer would have ", sent_o_bytes, " bytes of o and ",
                                       sent_lse_bytes, " of lse; a message holds ",
                                       max_answer_bytes, " (ComputeStream has no such limit)"));
  }
  return output;
}

TimePoint DeadlineOf(const v1::ComputeHeader& header, TimePoint arrival) {
  if (!header.has_timeout_us()) return kNever;
  if (header.timeout_us() >= ToMicroseconds(kNever - arrival)) return kNever;
  return arrival + microseconds(header.timeout_us());
}

// The sizes that came with the message; null: those that the shapes mean.
absl::StatusOr<std::unique_ptr<Request>> CheckHeader(const v1::ComputeHeader& header,
                                                     const PayloadBytes* given,
                                                     int64_t max_answer_bytes, const Limits& limits,
                                                     TimePoint arrival, const FieldNames& names,
                                                     PayloadBytes& sizes) {
  if (absl::Status status = CheckCallFields(header, limits, names); !status.ok()) return status;
  absl::StatusOr<Extents> extents = ReadExtents(header, names);
  if (!extents.ok()) return extents.status();
  absl::StatusOr<AttentionProblem> problem = ReadProblem(header, *extents);
  if (!problem.ok()) return problem.status();
  absl::Status status = CheckSlopes(header.alibi_slopes(), extents->q_heads);
  if (status.ok()) status = CheckSequences(header, *extents, limits, names);
  if (status.ok() && given != nullptr) {
    status = CheckPayloadSizes(header, extents->dtype, *given, names);
  }
  if (!status.ok()) return status;
  const absl::StatusOr<RegionTensors> regions = ReadRegionTensors(header, *extents, limits);
  if (!regions.ok()) return regions.status();
  sizes = SizesOf(header, extents->dtype);
  absl::StatusOr<OutputSpec> output =
      ReadOutput(header, *extents, *regions, sizes.q, max_answer_bytes);
  if (!output.ok()) return output.status();

  auto request = std::make_unique<Request>();
  request->request_id = header.request_id();
  request->priority = static_cast<int>(header.priority());
  request->arrival = arrival;
  request->deadline = DeadlineOf(header, arrival);
  if (extents->packed()) {
    request->problems = PackedSlots(*problem, header);
  } else {
    request->problems.push_back(DenseSlot(*problem, extents->layout));
  }
  if (!regions->none()) PlaceInRegions(*regions, header, *extents, request->problems);
  request->alibi_slopes.assign(header.alibi_slopes().begin(), header.alibi_slopes().end());
  request->output = std::move(*output);
  return request;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Request>> Check(const v1::ComputeHeader& header, int64_t q_bytes,
                                               int64_t k_bytes, int64_t v_bytes,
                                               const Limits& limits, TimePoint arrival,
                                               const FieldNames& names) {
  const PayloadBytes given{q_bytes, k_bytes, v_bytes};
  PayloadBytes sizes;
  return CheckHeader(header, &given, kMaxAnswerBytes, limits, arrival, names, sizes);
}

absl::StatusOr<std::unique_ptr<Request>> CheckStream(const v1::ComputeHeader& header,
                                                     const Limits& limits, TimePoint arrival,
                                                     PayloadBytes& sizes) {
  if (NamesRegions(header)) {
    return absl::UnimplementedError(
        "a stream's tensors come in its chunks; those in memory regions need Compute");
  }
  return CheckHeader(header, nullptr, INT64_MAX, limits, arrival, kHeaderNames, sizes);
}

}  // namespace attnd::server::wire
