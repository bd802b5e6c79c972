#include "server/wire/kserve_parameters.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace attnd::server::wire {
namespace {

using absl::InvalidArgumentError;
using absl::StrCat;
using inference::InferParameter;

struct Parameter {
  std::string name;  // "parameter causal"
  const InferParameter& value;
};

std::string ValueOf(const InferParameter& value) {
  switch (value.parameter_choice_case()) {
    case InferParameter::kBoolParam:
      return value.bool_param() ? "true" : "false";
    case InferParameter::kInt64Param:
      return StrCat(value.int64_param());
    case InferParameter::kStringParam:
      return Quoted(value.string_param());
    case InferParameter::kDoubleParam:
      return StrCat(value.double_param());
    case InferParameter::kUint64Param:
      return StrCat(value.uint64_param());
    case InferParameter::PARAMETER_CHOICE_NOT_SET:
      return "without a value";
  }
  return "?";
}

absl::Status Wrong(const Parameter& parameter, absl::string_view wanted) {
  return InvalidArgumentError(
      StrCat(parameter.name, " is ", ValueOf(parameter.value), "; it must be ", wanted));
}

bool FitsInteger(double value) {
  return value == std::floor(value) && value >= -9223372036854775808.0 &&
         value < 9223372036854775808.0;
}

absl::StatusOr<int64_t> Integer(const Parameter& parameter) {
  const InferParameter& value = parameter.value;
  int64_t integer = 0;
  if (value.has_int64_param()) return value.int64_param();
  if (value.has_uint64_param() &&
      value.uint64_param() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return static_cast<int64_t>(value.uint64_param());
  }
  if (value.has_double_param() && FitsInteger(value.double_param())) {
    return static_cast<int64_t>(value.double_param());
  }
  if (value.has_string_param() && absl::SimpleAtoi(value.string_param(), &integer)) return integer;
  return Wrong(parameter, "an integer");
}

absl::StatusOr<double> Number(const Parameter& parameter) {
  const InferParameter& value = parameter.value;
  double number = 0;
  if (value.has_double_param()) return value.double_param();
  if (value.has_int64_param()) return static_cast<double>(value.int64_param());
  if (value.has_uint64_param()) return static_cast<double>(value.uint64_param());
  if (value.has_string_param() && absl::SimpleAtod(value.string_param(), &number)) return number;
  return Wrong(parameter, "a number");
}

// A bool, or what stands for one.
absl::optional<bool> Flag(const InferParameter& value) {
  bool flag = false;
  if (value.has_bool_param()) return value.bool_param();
  if (value.has_string_param()) {
    return absl::SimpleAtob(value.string_param(), &flag) ? absl::make_optional(flag)
                                                         : absl::nullopt;
  }
  const double number = value.has_int64_param()    ? static_cast<double>(value.int64_param())
                        : value.has_uint64_param() ? static_cast<double>(value.uint64_param())
                        : value.has_double_param() ? value.double_param()
                                                   : -1;
  if (number == 0 || number == 1) return number == 1;
  return absl::nullopt;
}

absl::Status ReadCausal(const Parameter& parameter, const Limits&, v1::ComputeHeader& header) {
  const std::string text = absl::AsciiStrToLower(parameter.value.string_param());
  const absl::optional<bool> flag = Flag(parameter.value);
  if (text == "bottom_right" || flag == true) {
    header.set_causal(v1::CAUSAL_ALIGNMENT_BOTTOM_RIGHT);
  } else if (text == "top_left") {
    header.set_causal(v1::CAUSAL_ALIGNMENT_TOP_LEFT);
  } else if (text != "none" && !flag.has_value()) {
    return Wrong(parameter, "a bool, \"none\", \"top_left\" or \"bottom_right\"");
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> WindowSide(const Parameter& parameter) {
  absl::StatusOr<int64_t> keys = Integer(parameter);
  if (keys.ok() && *keys < 0) return Wrong(parameter, "at least 0, or absent for no bound");
  return keys;
}

absl::Status ReadWindowLeft(const Parameter& parameter, const Limits&, v1::ComputeHeader& header) {
  const absl::StatusOr<int64_t> keys = WindowSide(parameter);
  if (keys.ok()) header.mutable_window()->set_left(*keys);
  return keys.status();
}

absl::Status ReadWindowRight(const Parameter& parameter, const Limits&, v1::ComputeHeader& header) {
  const absl::StatusOr<int64_t> keys = WindowSide(parameter);
  if (keys.ok()) header.mutable_window()->set_right(*keys);
  return keys.status();
}

absl::Status ReadSoftcap(const Parameter& parameter, const Limits&, v1::ComputeHeader& header) {
  const absl::StatusOr<double> value = Number(parameter);
  if (value.ok()) header.set_softcap(static_cast<float>(*value));
  return value.status();
}

absl::Status ReadScale(const Parameter& parameter, const Limits&, v1::ComputeHeader& header) {
  const absl::StatusOr<double> value = Number(parameter);
  if (value.ok()) header.set_scale(static_cast<float>(*value));
  return value.status();
}

absl::Status ReadPriority(const Parameter& parameter, const Limits& limits,
                          v1::ComputeHeader& header) {
  const absl::StatusOr<int64_t> value = Integer(parameter);
  if (!value.ok()) return value.status();
  if (*value < 0 || *value > limits.max_priority) {
    return Wrong(parameter, StrCat("in 0..", limits.max_priority));
  }
  header.set_priority(static_cast<uint32_t>(*value));
  return absl::OkStatus();
}

// 0 is none, as everywhere in that protocol.
absl::Status ReadTimeout(const Parameter& parameter, const Limits&, v1::ComputeHeader& header) {
  const absl::StatusOr<int64_t> value = Integer(parameter);
  if (value.ok() && *value != 0) header.set_timeout_us(*value);
  return value.status();
}

absl::Status ReadSequenceId(const Parameter& parameter, const Limits&, v1::ComputeHeader&) {
  if (parameter.value.has_string_param() && parameter.value.string_param().empty()) {
    return absl::OkStatus();
  }
  if (Flag(parameter.value) == false) return absl::OkStatus();
  return Wrong(parameter, "0 or absent: requests of this model make no sequences");
}

absl::Status ReadSequenceEnd(const Parameter& parameter, const Limits&, v1::ComputeHeader&) {
  if (Flag(parameter.value) == false) return absl::OkStatus();
  return Wrong(parameter, "false or absent: requests of this model make no sequences");
}

// Of those that decide nothing here: each request has one answer, which is final, and raw.
absl::Status ReadAnyFlag(const Parameter& parameter, const Limits&, v1::ComputeHeader&) {
  return Flag(parameter.value) ? absl::OkStatus() : Wrong(parameter, "a bool");
}

constexpr struct {
  const char* name;
  absl::Status (*read)(const Parameter&, const Limits&, v1::ComputeHeader&);
} kParameters[] = {
    {"causal", ReadCausal},
    {"window_left", ReadWindowLeft},
    {"window_right", ReadWindowRight},
    {"softcap", ReadSoftcap},
    {"scale", ReadScale},
    {"priority", ReadPriority},
    {"timeout", ReadTimeout},
    {"sequence_id", ReadSequenceId},
    {"sequence_start", ReadSequenceEnd},
    {"sequence_end", ReadSequenceEnd},
    {"triton_enable_empty_final_response", ReadAnyFlag},
    {"binary_data_output", ReadAnyFlag},
};

constexpr char kRegion[] = "shared_memory_region";
constexpr char kRegionSize[] = "shared_memory_byte_size";
constexpr char kRegionOffset[] = "shared_memory_offset";

// A tensor's parameter that is a size or an offset; `bytes` stays what it is where there is none.
absl::Status ReadBytes(const std::string& tensor, const InferParameters& parameters,
                       const char* name, int64_t& bytes) {
  const auto found = parameters.find(name);
  if (found == parameters.end()) return absl::OkStatus();
  const Parameter parameter{StrCat(tensor, "'s parameter ", name), found->second};
  const absl::StatusOr<int64_t> given = Integer(parameter);
  if (!given.ok()) return given.status();
  if (*given < 0) return Wrong(parameter, "at least 0");
  bytes = *given;
  return absl::OkStatus();
}

// The first by name, for a map has no order, that is none of `known`; null: there is none.
const std::string* FirstUnknown(const InferParameters& parameters,
                                absl::Span<const absl::string_view> known) {
  const std::string* first = nullptr;
  for (const auto& [name, value] : parameters) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (first == nullptr || name < *first) first = &name;
  }
  return first;
}

}  // namespace

std::string Quoted(absl::string_view text) {
  constexpr size_t kMaxQuotedBytes = 64;
  return StrCat("\"", absl::CHexEscape(text.substr(0, kMaxQuotedBytes)),
                text.size() > kMaxQuotedBytes ? "\"..." : "\"");
}

absl::Status ReadParameters(const InferParameters& parameters, const Limits& limits,
                            v1::ComputeHeader& header) {
  std::vector<absl::string_view> known;
  for (const auto& parameter : kParameters) {
    known.push_back(parameter.name);
    const auto found = parameters.find(parameter.name);
    if (found == parameters.end()) continue;
    absl::Status status =
        parameter.read({StrCat("parameter ", parameter.name), found->second}, limits, header);
    if (!status.ok()) return status;
  }
  const std::string* const unknown = FirstUnknown(parameters, known);
  if (unknown == nullptr) return absl::OkStatus();
  return InvalidArgumentError(
      StrCat("parameter ", Quoted(*unknown),
             " is none of this model's: causal, window_left, window_right, softcap, scale, "
             "priority, timeout"));
}

absl::StatusOr<absl::optional<NamedPlace>> ReadPlace(const std::string& tensor,
                                                     const InferParameters& parameters) {
  if (parameters.empty()) return absl::nullopt;
  const absl::string_view known[] = {kRegion, kRegionSize, kRegionOffset, "classification",
                                     "binary_data"};
  if (const std::string* const unknown = FirstUnknown(parameters, known)) {
    return InvalidArgumentError(StrCat(tensor, "'s parameter ", Quoted(*unknown),
                                       " is none that a tensor has: ", kRegion, ", ", kRegionSize,
                                       ", ", kRegionOffset));
  }
  const auto classes = parameters.find("classification");
  if (classes != parameters.end() && Flag(classes->second) != false) {
    return Wrong({StrCat(tensor, "'s parameter classification"), classes->second},
                 "0 or absent: this model has no classes");
  }
  const auto region = parameters.find(kRegion);
  const bool has_region = region != parameters.end();
  const bool has_size = parameters.count(kRegionSize) > 0;
  if (has_region != has_size || (parameters.count(kRegionOffset) > 0 && !has_region)) {
    return InvalidArgumentError(StrCat(tensor, " has ", has_region ? "a " : "no ", kRegion, " and ",
                                       has_size ? "a " : "no ", kRegionSize,
                                       "; it needs both or none"));
  }
  if (!has_region) return absl::nullopt;
  NamedPlace place;
  place.region = region->second.string_param();
  if (place.region.empty()) {
    return Wrong({StrCat(tensor, "'s parameter ", kRegion), region->second},
                 "the name of a region");
  }
  absl::Status status = ReadBytes(tensor, parameters, kRegionSize, place.size_bytes);
  if (status.ok()) status = ReadBytes(tensor, parameters, kRegionOffset, place.offset_bytes);
  if (!status.ok()) return status;
  return place;
}

}  // namespace attnd::server::wire
