// What one call of a load asks for: its shape, its mask, and how urgent it is.
#ifndef ATTND_CLIENT_TOOLS_LOAD_CALL_KIND_H_
#define ATTND_CLIENT_TOOLS_LOAD_CALL_KIND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/client.h"

namespace attnd::tools {

struct CallKind {
  double weight = 1;  // in a mix: its share is its weight over the sum
  int64_t batch = 1;
  int64_t q_heads = 8;
  absl::optional<int64_t> kv_heads;  // absent: as q_heads
  int64_t q_len = 512;
  absl::optional<int64_t> kv_len;  // absent: as q_len
  int64_t head_dim = 64;
  DType dtype = DType::kFloat16;
  Causal causal = Causal::kNone;
  absl::optional<int64_t> window_left;
  absl::optional<int64_t> window_right;
  int64_t priority = 0;
  absl::optional<absl::Duration> timeout;

  std::vector<int64_t> q_shape() const { return {batch, q_heads, q_len, head_dim}; }
  std::vector<int64_t> kv_shape() const {
    return {batch, kv_heads.value_or(q_heads), kv_len.value_or(q_len), head_dim};
  }
  bool operator==(const CallKind&) const = default;
};

const char* CausalName(Causal causal);  // "none", "top-left", "bottom-right"

// The names that SetField knows, apart from "weight": the fields above, `timeout` as "timeout_ms".
const std::vector<std::string>& CallKindFields();

// INVALID_ARGUMENT "NAME is "VALUE", must be ...", or that there is no such field.
absl::Status SetField(absl::string_view name, absl::string_view value, CallKind* kind);

// INVALID_ARGUMENT if a tensor would have 2 GiB or more.
absl::Status CheckSizes(const CallKind& kind);

// "float16 q [1,8,512,64] kv [1,8,512,64] causal none", and what else is not the default.
std::string Describe(const CallKind& kind);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_CALL_KIND_H_
