#include "client/tools/load/call_kind.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attnd::tools {
namespace {

constexpr int64_t kMost = int64_t{1} << 31;

absl::Status BadValue(absl::string_view name, absl::string_view value, const std::string& wanted) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is \"", value, "\", must be ", wanted));
}

absl::Status SetWhole(absl::string_view name, absl::string_view value, int64_t min, int64_t max,
                      int64_t* field) {
  int64_t parsed = 0;
  if (!absl::SimpleAtoi(value, &parsed) || parsed < min || parsed > max) {
    return BadValue(name, value, absl::StrCat("a whole number in ", min, "..", max));
  }
  *field = parsed;
  return absl::OkStatus();
}

absl::Status SetOptional(absl::string_view name, absl::string_view value,
                         absl::optional<int64_t>* field) {
  int64_t parsed = 0;
  absl::Status status = SetWhole(name, value, 0, kMost, &parsed);
  if (status.ok()) *field = parsed;
  return status;
}

absl::Status SetDType(absl::string_view value, DType* field) {
  for (DType candidate : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    if (value != DTypeName(candidate)) continue;
    *field = candidate;
    return absl::OkStatus();
  }
  return BadValue("dtype", value, "float32, float16 or bfloat16");
}

absl::Status SetCausal(absl::string_view value, Causal* field) {
  for (Causal candidate : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
    if (value != CausalName(candidate)) continue;
    *field = candidate;
    return absl::OkStatus();
  }
  return BadValue("causal", value, "bottom-right, top-left or none");
}

absl::Status SetWeight(absl::string_view value, double* field) {
  double parsed = 0;
  if (!absl::SimpleAtod(value, &parsed) || !(parsed > 0) || !std::isfinite(parsed)) {
    return BadValue("weight", value, "a number above 0");
  }
  *field = parsed;
  return absl::OkStatus();
}

absl::Status SetTimeout(absl::string_view value, absl::optional<absl::Duration>* field) {
  int64_t timeout_ms = 0;
  absl::Status status = SetWhole("timeout_ms", value, 1, int64_t{1} << 40, &timeout_ms);
  if (status.ok()) *field = absl::Milliseconds(timeout_ms);
  return status;
}

}  // namespace

const char* CausalName(Causal causal) {
  return causal == Causal::kNone      ? "none"
         : causal == Causal::kTopLeft ? "top-left"
                                      : "bottom-right";
}

const std::vector<std::string>& CallKindFields() {
  static const std::vector<std::string> fields = {
      "batch", "q_heads", "kv_heads",    "q_len",        "kv_len",   "head_dim",
      "dtype", "causal",  "window_left", "window_right", "priority", "timeout_ms"};
  return fields;
}

absl::Status SetField(absl::string_view name, absl::string_view value, CallKind* kind) {
  if (name == "weight") return SetWeight(value, &kind->weight);
  if (name == "batch") return SetWhole(name, value, 0, kMost, &kind->batch);
  if (name == "q_heads") return SetWhole(name, value, 0, kMost, &kind->q_heads);
  if (name == "kv_heads") return SetOptional(name, value, &kind->kv_heads);
  if (name == "q_len") return SetWhole(name, value, 0, kMost, &kind->q_len);
  if (name == "kv_len") return SetOptional(name, value, &kind->kv_len);
  if (name == "head_dim") return SetWhole(name, value, 0, kMost, &kind->head_dim);
  if (name == "dtype") return SetDType(value, &kind->dtype);
  if (name == "causal") return SetCausal(value, &kind->causal);
  if (name == "window_left") return SetOptional(name, value, &kind->window_left);
  if (name == "window_right") return SetOptional(name, value, &kind->window_right);
  if (name == "priority") return SetWhole(name, value, 0, 1000, &kind->priority);
  if (name == "timeout_ms") return SetTimeout(value, &kind->timeout);
  return absl::InvalidArgumentError(absl::StrCat("there is no field \"", name, "\""));
}

absl::Status CheckSizes(const CallKind& kind) {
  for (const std::vector<int64_t>& shape : {kind.q_shape(), kind.kv_shape()}) {
    const int64_t bytes = TensorView{kind.dtype, shape, nullptr}.size_bytes();
    if (bytes < kMost) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the shape means ", bytes, " bytes a tensor, must be below ", kMost));
  }
  return absl::OkStatus();
}

std::string Describe(const CallKind& kind) {
  std::string text =
      absl::StrCat(DTypeName(kind.dtype), " q [", absl::StrJoin(kind.q_shape(), ","), "] kv [",
                   absl::StrJoin(kind.kv_shape(), ","), "] causal ", CausalName(kind.causal));
  if (kind.window_left || kind.window_right) {
    const auto side = [](const absl::optional<int64_t>& keys) {
      return keys ? absl::StrCat(*keys) : std::string("-");
    };
    absl::StrAppend(&text, " window ", side(kind.window_left), ",", side(kind.window_right));
  }
  if (kind.priority != 0) absl::StrAppend(&text, " priority ", kind.priority);
  if (kind.timeout) absl::StrAppend(&text, " timeout ", absl::FormatDuration(*kind.timeout));
  return text;
}

}  // namespace attnd::tools
