#include "server/wire/kserve_translate.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/wire/scanner.h"
#include "server/wire/span_reader.h"

namespace attnd::server::wire {
namespace {

using absl::InvalidArgumentError;
using absl::StrCat;
using google::protobuf::RepeatedField;
using inference::InferTensorContents;
using InferInput = inference::ModelInferRequest::InferInputTensor;

enum InputIndex { kQ, kK, kV, kEndsQ, kEndsK, kInputs };
constexpr const char* kInputNames[] = {"Q", "K", "V", "CU_SEQLENS_Q", "CU_SEQLENS_K"};

struct Input {
  const InferInput* tensor = nullptr;  // null: there is none
  InputBytes bytes;
};
using Inputs = Input[kInputs];

std::string Named(const InferInput& input) { return StrCat("input ", Quoted(input.name())); }

std::string ShapeOf(const InferInput& input) {
  return StrCat("[", absl::StrJoin(input.shape(), ", "), "]");
}

template <typename Element>
ByteSpan BytesOf(const RepeatedField<Element>& elements) {
  return {reinterpret_cast<const unsigned char*>(elements.data()),
          static_cast<size_t>(elements.size()) * sizeof(Element)};
}

// The list for this datatype; the others must be empty.
absl::Status ReadContents(const InferInput& input, InputBytes& bytes) {
  const InferTensorContents& contents = input.contents();
  const char* list = nullptr;
  if (input.datatype() == "FP32") {
    list = "fp32_contents";
    bytes.typed = BytesOf(contents.fp32_contents());
  } else if (input.datatype() == "INT32") {
    list = "int_contents";
    bytes.typed = BytesOf(contents.int_contents());
  } else if (input.datatype() == "INT64") {
    list = "int64_contents";
    bytes.typed = BytesOf(contents.int64_contents());
  } else {
    return InvalidArgumentError(StrCat(Named(input), " is of datatype ", Quoted(input.datatype()),
                                       " and has contents, which are for FP32, INT32 and INT64: "
                                       "send it in raw_input_contents"));
  }
  const int elements = contents.bool_contents_size() + contents.int_contents_size() +
                       contents.int64_contents_size() + contents.uint_contents_size() +
                       contents.uint64_contents_size() + contents.fp32_contents_size() +
                       contents.fp64_contents_size() + contents.bytes_contents_size();
  const size_t element_bytes = input.datatype() == "INT64" ? 8 : 4;
  if (bytes.typed.size() != static_cast<size_t>(elements) * element_bytes) {
    return InvalidArgumentError(StrCat(Named(input), " is of datatype ", input.datatype(),
                                       " and has contents of another one; they must be ", list));
  }
  return absl::OkStatus();
}

absl::StatusOr<Input*> Find(Inputs& inputs, const InferInput& tensor) {
  for (int i = 0; i < kInputs; ++i) {
    if (tensor.name() != kInputNames[i]) continue;
    if (inputs[i].tensor == nullptr) return &inputs[i];
    return InvalidArgumentError(StrCat(Named(tensor), " is there twice"));
  }
  return InvalidArgumentError(
      StrCat(Named(tensor), " is none of this model's: ", absl::StrJoin(kInputNames, ", ")));
}

absl::Status Prefixed(const std::string& tensor, const absl::Status& status) {
  return absl::Status(status.code(), StrCat(tensor, ": ", status.message()));
}

absl::StatusOr<ShmRange> FindPlace(const std::string& tensor, const NamedPlace& place,
                                   ShmOfCall& shm) {
  absl::StatusOr<ShmRange> range = shm.Find(place.region, static_cast<uint64_t>(place.offset_bytes),
                                            static_cast<uint64_t>(place.size_bytes));
  if (range.ok()) return range;
  return Prefixed(StrCat(tensor, " in shared memory ", Quoted(place.region)), range.status());
}

// Which inputs there are, and where their bytes lie.
absl::Status ReadInputs(const ScannedInfer& scanned, ShmOfCall& shm, Inputs& inputs) {
  size_t in_message = 0;
  for (const InferInput& tensor : scanned.request.inputs()) {
    const absl::StatusOr<Input*> input = Find(inputs, tensor);
    if (!input.ok()) return input.status();
    (*input)->tensor = &tensor;
    InputBytes& bytes = (*input)->bytes;
    const auto place = ReadPlace(Named(tensor), tensor.parameters());
    if (!place.ok()) return place.status();
    if (tensor.has_contents() && (*place || !scanned.raw.empty())) {
      return InvalidArgumentError(
          StrCat(Named(tensor), " has contents, and ",
                 *place ? "a shared_memory_region" : "there are raw_input_contents",
                 " too; a request has one of them"));
    }
    if (*place) {
      absl::StatusOr<ShmRange> range = FindPlace(Named(tensor), **place, shm);
      if (!range.ok()) return range.status();
      bytes.shared = *std::move(range);
      continue;
    }
    if (in_message < scanned.raw.size()) bytes.raw = scanned.raw[in_message];
    ++in_message;
    if (!tensor.has_contents()) continue;
    if (absl::Status status = ReadContents(tensor, bytes); !status.ok()) return status;
  }
  if (!scanned.raw.empty() && scanned.raw.size() != in_message) {
    return InvalidArgumentError(StrCat("raw_input_contents has ", scanned.raw.size(), " entries; ",
                                       in_message, " inputs do not lie in shared memory"));
  }
  return absl::OkStatus();
}

absl::Status ReadSpec(const Input& input, const char* name, v1::TensorSpec& spec) {
  if (input.tensor == nullptr) return InvalidArgumentError(StrCat("input ", name, " is missing"));
  const std::string& datatype = input.tensor->datatype();
  if (datatype == "FP32") {
    spec.set_dtype(v1::DATA_TYPE_FLOAT32);
  } else if (datatype == "FP16") {
    spec.set_dtype(v1::DATA_TYPE_FLOAT16);
  } else if (datatype == "BF16") {
    spec.set_dtype(v1::DATA_TYPE_BFLOAT16);
  } else {
    return InvalidArgumentError(StrCat("input ", name, " is of datatype ", Quoted(datatype),
                                       "; it must be of FP32, FP16 or BF16"));
  }
  *spec.mutable_shape() = input.tensor->shape();
  return absl::OkStatus();
}

absl::Status ReadSpecs(const Inputs& inputs, bool is_packed, v1::ComputeHeader& header) {
  v1::TensorSpec* const specs[] = {header.mutable_q(), header.mutable_k(), header.mutable_v()};
  for (int i = kQ; i <= kV; ++i) {
    absl::Status status = ReadSpec(inputs[i], kInputNames[i], *specs[i]);
    if (!status.ok()) return status;
    if (inputs[i].tensor->datatype() == inputs[kQ].tensor->datatype()) continue;
    return InvalidArgumentError(StrCat("input ", kInputNames[i], " is of datatype ",
                                       inputs[i].tensor->datatype(), " and input Q of ",
                                       inputs[kQ].tensor->datatype(), "; they must be of one"));
  }
  const InferInput& q = *inputs[kQ].tensor;
  if (q.shape_size() != (is_packed ? 3 : 4)) {
    return InvalidArgumentError(
        StrCat("input Q has shape ", ShapeOf(q), ", of rank ", q.shape_size(), "; it must be ",
               "[batch, q_heads, q_len, head_dim], or, with CU_SEQLENS_Q and CU_SEQLENS_K, ",
               "[tokens, q_heads, head_dim]"));
  }
  header.set_layout(is_packed ? v1::LAYOUT_THD : v1::LAYOUT_BHSD);
  return absl::OkStatus();
}

template <typename Element>
void AppendAll(const std::string& bytes, RepeatedField<int64_t>& to) {
  for (size_t at = 0; at + sizeof(Element) <= bytes.size(); at += sizeof(Element)) {
    Element element;
    std::memcpy(&element, bytes.data() + at, sizeof(element));
    to.Add(element);
  }
}

absl::Status ReadEnds(const Input& input, absl::Span<const ByteSpan> message, const Limits& limits,
                      RepeatedField<int64_t>& ends) {
  const InferInput& tensor = *input.tensor;
  const bool is_int64 = tensor.datatype() == "INT64";
  if (!is_int64 && tensor.datatype() != "INT32") {
    return InvalidArgumentError(StrCat(Named(tensor), " is of datatype ", Quoted(tensor.datatype()),
                                       "; it must be of INT32 or INT64"));
  }
  const int64_t most = limits.max_sequences + 1;
  if (tensor.shape_size() != 1 || tensor.shape(0) < 0 || tensor.shape(0) > most) {
    return InvalidArgumentError(StrCat(Named(tensor), " has shape ", ShapeOf(tensor),
                                       "; it must be [sequences + 1], at most [", most, "]"));
  }
  const PayloadSource source = input.bytes.Source(message);
  const int64_t wanted_bytes = tensor.shape(0) * (is_int64 ? 8 : 4);
  if (source.size_bytes != wanted_bytes) {
    return InvalidArgumentError(StrCat(Named(tensor), " has ", source.size_bytes, " bytes; shape ",
                                       ShapeOf(tensor), " of ", tensor.datatype(), " needs ",
                                       wanted_bytes));
  }
  std::string bytes;
  if (source.shared != nullptr) {
    bytes.resize(static_cast<size_t>(source.size_bytes));
    const absl::Status status = source.shared->ReadInto(bytes.data());
    if (!status.ok()) return Prefixed(Named(tensor), status);
  } else {
    SpanReader reader(source.spans);
    reader.Skip(source.offset_bytes);
    reader.AppendTo(source.size_bytes, bytes);
  }
  is_int64 ? AppendAll<int64_t>(bytes, ends) : AppendAll<int32_t>(bytes, ends);
  return absl::OkStatus();
}

absl::Status ReadOutputs(const inference::ModelInferRequest& request, ShmOfCall& shm,
                         WantedOutputs& wanted) {
  if (request.outputs().empty()) return absl::OkStatus();
  wanted = {false, false};
  for (const auto& output : request.outputs()) {
    const std::string name = StrCat("output ", Quoted(output.name()));
    bool* const flag = output.name() == "O"     ? &wanted.o
                       : output.name() == "LSE" ? &wanted.lse
                                                : nullptr;
    if (flag == nullptr) {
      return InvalidArgumentError(StrCat(name, " is none of this model's: O, LSE"));
    }
    if (std::exchange(*flag, true)) return InvalidArgumentError(StrCat(name, " is there twice"));
    const auto place = ReadPlace(name, output.parameters());
    if (!place.ok()) return place.status();
    if (!*place) continue;
    absl::StatusOr<ShmRange> range = FindPlace(name, **place, shm);
    if (!range.ok()) return range.status();
    (flag == &wanted.o ? wanted.o_place : wanted.lse_place) = {
        (*place)->region, (*place)->offset_bytes, *std::move(range)};
  }
  return absl::OkStatus();
}

}  // namespace

PayloadSource InputBytes::Source(absl::Span<const ByteSpan> message) const {
  if (shared) return {{}, 0, shared->size_bytes(), &*shared};
  if (raw) return {message, raw->offset_bytes, raw->size_bytes};
  return {absl::MakeConstSpan(&typed, 1), 0, static_cast<int64_t>(typed.size())};
}

absl::StatusOr<ScannedInfer> ScanInfer(absl::Span<const ByteSpan> message, const Limits& limits) {
  if (absl::Status status = CheckMessageSize(message, limits); !status.ok()) return status;
  PayloadList raw{kInputs, {}};
  using inference::ModelInferRequest;
  const ScannedField fields[] = {
      {ModelInferRequest::kModelNameFieldNumber, "model_name"},
      {ModelInferRequest::kModelVersionFieldNumber, "model_version"},
      {ModelInferRequest::kIdFieldNumber, "id"},
      {ModelInferRequest::kParametersFieldNumber, "parameters"},
      {ModelInferRequest::kInputsFieldNumber, "inputs"},
      {ModelInferRequest::kOutputsFieldNumber, "outputs"},
      {ModelInferRequest::kRawInputContentsFieldNumber, "raw_input_contents", nullptr, &raw}};
  const ScanRules rules{"ModelInferRequest",
                        "the rest of the message",
                        "raw_input_contents",
                        limits.max_header_bytes,
                        fields,
                        ": send tensors in raw_input_contents"};
  Scanner scanner(message, rules);
  if (absl::Status status = scanner.Run(); !status.ok()) return status;
  ScannedInfer found;
  absl::Status status = scanner.ParseRest(
      found.request, "a field inside is cut short or malformed, or a string is not valid UTF-8");
  if (!status.ok()) return status;
  found.raw = std::move(raw.items);
  return found;
}

absl::StatusOr<TranslatedInfer> Translate(const ScannedInfer& scanned,
                                          absl::Span<const ByteSpan> message, const Limits& limits,
                                          ShmOfCall& shm) {
  const inference::ModelInferRequest& request = scanned.request;
  TranslatedInfer translated;
  v1::ComputeHeader& header = translated.header;
  absl::Status status = CheckModel(request.model_name(), request.model_version());
  if (status.ok()) status = ReadParameters(request.parameters(), limits, header);
  Inputs inputs;
  if (status.ok()) status = ReadInputs(scanned, shm, inputs);
  const bool has_ends_q = inputs[kEndsQ].tensor != nullptr;
  const bool has_ends_k = inputs[kEndsK].tensor != nullptr;
  if (status.ok() && has_ends_q != has_ends_k) {
    status = InvalidArgumentError(StrCat("input ", kInputNames[has_ends_q ? kEndsQ : kEndsK],
                                         " is there and ",
                                         kInputNames[has_ends_q ? kEndsK : kEndsQ], " is not"));
  }
  if (status.ok()) status = ReadSpecs(inputs, has_ends_q, header);
  if (status.ok() && has_ends_q) {
    status = ReadEnds(inputs[kEndsQ], message, limits, *header.mutable_cu_seqlens_q());
  }
  if (status.ok() && has_ends_k) {
    status = ReadEnds(inputs[kEndsK], message, limits, *header.mutable_cu_seqlens_kv());
  }
  if (status.ok()) status = ReadOutputs(request, shm, translated.wanted);
  if (!status.ok()) return status;
  header.set_request_id(request.id());
  header.set_want_lse(translated.wanted.lse);
  translated.q = std::move(inputs[kQ].bytes);
  translated.k = std::move(inputs[kK].bytes);
  translated.v = std::move(inputs[kV].bytes);
  return translated;
}

}  // namespace attnd::server::wire
