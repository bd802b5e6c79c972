#include "client/c_structs.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace attnd::client {
namespace {

static_assert(ATTND_CLIENT_REGION == static_cast<int>(Transport::kRegion));
static_assert(ATTND_CLIENT_THD == static_cast<int>(Layout::kTHD));
static_assert(ATTND_CLIENT_BF16 == static_cast<int>(DType::kBFloat16));
static_assert(ATTND_CLIENT_CAUSAL_BOTTOM_RIGHT == static_cast<int>(Causal::kBottomRight));

// A tensor of more axes is none of attention's.
constexpr int32_t kMaxRank = 64;

absl::Status OutOfRange(absl::string_view field, int64_t value, const char* range) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; it must be ", range));
}

absl::Status ReadTensor(const char* name, const attnd_client_tensor& from, TensorView& to) {
  if (from.rank < 0 || from.rank > kMaxRank) {
    return OutOfRange(absl::StrCat(name, ".rank"), from.rank, "in 0..64");
  }
  if (from.rank > 0 && from.shape == nullptr) return Null(absl::StrCat(name, ".shape"));
  if (from.dtype < ATTND_CLIENT_F32 || from.dtype > ATTND_CLIENT_BF16) {
    return OutOfRange(absl::StrCat(name, ".dtype"), from.dtype, "in 0..2");
  }
  to.dtype = static_cast<DType>(from.dtype);
  to.shape.assign(from.shape, from.shape + from.rank);
  to.data = from.data;
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadList(const char* name, const T* from, int64_t count, std::vector<T>& to) {
  if (count < 0) return OutOfRange(absl::StrCat(name, "_count"), count, "at least 0");
  if (count > 0 && from == nullptr) return Null(name);
  to.assign(from, from + count);
  return absl::OkStatus();
}

absl::Status CheckChoices(const attnd_client_request& from) {
  constexpr uint32_t kGiven = ATTND_CLIENT_GIVEN_WINDOW_LEFT | ATTND_CLIENT_GIVEN_WINDOW_RIGHT |
                              ATTND_CLIENT_GIVEN_SCALE | ATTND_CLIENT_GIVEN_SOFTCAP;
  if ((from.given & ~kGiven) != 0) return OutOfRange("given", from.given, "of 1, 2, 4 and 8");
  if (from.layout < ATTND_CLIENT_BHSD || from.layout > ATTND_CLIENT_THD) {
    return OutOfRange("layout", from.layout, "in 0..2");
  }
  if (from.causal < ATTND_CLIENT_CAUSAL_NONE || from.causal > ATTND_CLIENT_CAUSAL_BOTTOM_RIGHT) {
    return OutOfRange("causal", from.causal, "in 0..2");
  }
  if (from.transport < ATTND_CLIENT_AUTO || from.transport > ATTND_CLIENT_REGION) {
    return OutOfRange("transport", from.transport, "in 0..3");
  }
  if (from.priority < 0) return OutOfRange("priority", from.priority, "at least 0");
  return absl::OkStatus();
}

}  // namespace

void CopyText(absl::string_view text, char* to, size_t size_bytes) {
  if (to == nullptr || size_bytes == 0) return;
  const size_t length = std::min(text.size(), size_bytes - 1);
  std::copy_n(text.data(), length, to);
  to[length] = '\0';
}

absl::Status Null(absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
}

absl::Duration ToDuration(int64_t timeout_us) {
  return timeout_us == ATTND_CLIENT_NO_TIMEOUT ? absl::InfiniteDuration()
                                               : absl::Microseconds(timeout_us);
}

absl::StatusOr<ClientOptions> ReadOptions(const attnd_client_options* from) {
  ClientOptions to;
  if (from == nullptr) return to;
  if (absl::Status status = CheckSize("options", from); !status.ok()) return status;
  if (from->max_tries < 1) return OutOfRange("max_tries", from->max_tries, "at least 1");
  if (from->max_region_bytes < 0) {
    return OutOfRange("max_region_bytes", from->max_region_bytes, "at least 0");
  }
  to.max_tries = from->max_tries;
  to.max_region_bytes = from->max_region_bytes;
  if (from->local_socket != nullptr) to.local_socket = from->local_socket;
  return to;
}

absl::StatusOr<AttentionRequest> ReadRequest(const attnd_client_request* given) {
  absl::Status status = CheckSize("request", given);
  if (!status.ok()) return status;
  attnd_client_request from;
  attnd_client_request_init(&from, sizeof(from));
  std::memcpy(&from, given, given->struct_size_bytes);
  AttentionRequest to;
  status.Update(CheckChoices(from));
  status.Update(ReadTensor("q", from.q, to.q));
  status.Update(ReadTensor("k", from.k, to.k));
  status.Update(ReadTensor("v", from.v, to.v));
  status.Update(
      ReadList("alibi_slopes", from.alibi_slopes, from.alibi_slopes_count, to.alibi_slopes));
  status.Update(
      ReadList("cu_seqlens_q", from.cu_seqlens_q, from.cu_seqlens_q_count, to.cu_seqlens_q));
  status.Update(
      ReadList("cu_seqlens_kv", from.cu_seqlens_kv, from.cu_seqlens_kv_count, to.cu_seqlens_kv));
  if (from.o == nullptr && to.q.size_bytes() > 0) status.Update(Null("o"));
  if (!status.ok()) return status;
  to.layout = static_cast<Layout>(from.layout);
  to.causal = static_cast<Causal>(from.causal);
  to.transport = static_cast<Transport>(from.transport);
  to.priority = from.priority;
  if (from.given & ATTND_CLIENT_GIVEN_WINDOW_LEFT) to.window_left = from.window_left;
  if (from.given & ATTND_CLIENT_GIVEN_WINDOW_RIGHT) to.window_right = from.window_right;
  if (from.given & ATTND_CLIENT_GIVEN_SCALE) to.scale = from.scale;
  if (from.given & ATTND_CLIENT_GIVEN_SOFTCAP) to.softcap = from.softcap;
  to.want_lse = from.lse != nullptr;
  if (from.o != nullptr) to.o_place = OutputView{from.o, nullptr};
  if (from.request_id != nullptr) to.request_id = from.request_id;
  if (from.timeout_us != ATTND_CLIENT_NO_TIMEOUT) to.timeout = ToDuration(from.timeout_us);
  return to;
}

attnd_client_result FailureOf(const absl::Status& status, const Failure& failure) {
  attnd_client_result to = {};
  to.code = static_cast<int32_t>(status.code());  // attnd_client_code has absl's numbers
  to.tries = failure.tries;
  to.from_server = failure.from_server;
  to.untouched = failure.untouched;
  to.has_pushback = failure.pushback_ms.has_value();
  to.pushback_ms = failure.pushback_ms.value_or(0);
  CopyText(status.message(), to.message, sizeof(to.message));
  return to;
}

attnd_client_result AccountOf(const AttentionResult& from) {
  attnd_client_result to = {};
  to.tries = from.tries;
  to.transport = static_cast<int32_t>(from.transport);
  to.queue_us = from.timing.queue_us;
  to.upload_us = from.timing.upload_us;
  to.run_us = from.timing.run_us;
  to.download_us = from.timing.download_us;
  to.total_us = from.timing.total_us;
  to.batch_id = static_cast<int64_t>(from.batch_id);
  to.batch_size = from.batch_size;
  to.sent_bytes = from.sent_bytes;
  to.received_bytes = from.received_bytes;
  CopyText(from.backend, to.backend, sizeof(to.backend));
  CopyText(from.kernel, to.kernel, sizeof(to.kernel));
  CopyText(from.device, to.device, sizeof(to.device));
  return to;
}

attnd_client_server_info InfoOf(const ServerInfo& from) {
  attnd_client_server_info to = {};
  to.max_unary_bytes = from.max_unary_bytes;
  to.max_stream_bytes = from.max_stream_bytes;
  to.max_head_dim = from.max_head_dim;
  to.takes_cuda_memory = from.takes_cuda_memory;
  to.device_count = static_cast<int32_t>(from.devices.size());
  CopyText(from.instance_id, to.instance_id, sizeof(to.instance_id));
  CopyText(from.version, to.version, sizeof(to.version));
  CopyText(from.backend, to.backend, sizeof(to.backend));
  CopyText(from.backend_reason, to.backend_reason, sizeof(to.backend_reason));
  std::string devices;
  for (const ServerInfo::Device& device : from.devices) {
    absl::StrAppend(&devices, devices.empty() ? "" : "\n", device.id, ": ", device.name);
  }
  CopyText(devices, to.devices, sizeof(to.devices));
  return to;
}

}  // namespace attnd::client
