#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/attnd_client.h"
#include "client/c_structs.h"
#include "client/client.h"

namespace c = attnd;
namespace s = attnd::client;

struct attnd_client {
  std::unique_ptr<c::Client> client;
};
struct attnd_client_call {
  std::unique_ptr<c::StartedCall> call;
  float* lse = nullptr;  // null: not wanted
};

namespace {

// Runs `body`, a function that returns a Status; no exception leaves the library.
template <typename Body>
absl::Status Guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

// attnd_client_code has absl's numbers.
int CodeOf(const absl::Status& status) { return static_cast<int>(status.code()); }

int Report(const absl::Status& status, char* error, size_t error_size_bytes) {
  s::CopyText(status.message(), error, error_size_bytes);
  return CodeOf(status);
}

absl::Status StartCall(attnd_client* client, const attnd_client_request* request, bool waits,
                       attnd_client_call& call) {
  if (client == nullptr) return s::Null("client");
  if (request == nullptr) return s::Null("request");
  absl::StatusOr<c::AttentionRequest> read = s::ReadRequest(request);
  if (!read.ok()) return read.status();
  call.lse = request->lse;
  call.call = client->client->Start(*std::move(read),
                                    waits ? c::Progress::kWhileWaited : c::Progress::kByItself);
  return absl::OkStatus();
}

absl::Status CopyLse(const attnd_client_call& call, const c::AttentionResult& from) {
  if (call.lse == nullptr) return absl::OkStatus();
  c::TensorView rows{c::DType::kFloat32, from.o.shape};  // O is known to be as Q
  if (!rows.shape.empty()) rows.shape.pop_back();
  const auto came_bytes = from.lse ? static_cast<int64_t>(from.lse->bytes.size()) : 0;
  if (came_bytes != rows.size_bytes()) {
    return absl::InternalError(
        absl::StrCat("answer: lse has ", came_bytes, " bytes, asked for ", rows.size_bytes()));
  }
  if (came_bytes > 0) std::memcpy(call.lse, from.lse->bytes.data(), from.lse->bytes.size());
  return absl::OkStatus();
}

// False: the call has not ended yet.
bool Wait(attnd_client_call& call, absl::Duration timeout, attnd_client_result& to) {
  const absl::optional<absl::StatusOr<c::AttentionResult>> result = call.call->WaitFor(timeout);
  if (!result) return false;
  absl::Status status = result->status();
  if (status.ok()) status = CopyLse(call, **result);
  to = status.ok() ? s::AccountOf(**result) : s::FailureOf(status, call.call->failure());
  return true;
}

int GiveResult(const attnd_client_result& from, attnd_client_result* to) {
  if (to != nullptr) s::Give(from, to);
  return from.code;
}

absl::Status CheckResult(const attnd_client_result* result) {
  return result == nullptr ? absl::OkStatus() : s::CheckSize("result", result);
}

}  // namespace

extern "C" {

const char* attnd_client_version(void) { return ATTND_VERSION; }

void attnd_client_options_init(attnd_client_options* options, uint64_t struct_size_bytes) {
  if (!s::Zero(options, struct_size_bytes)) return;
  const c::ClientOptions defaults;
  options->max_tries = defaults.max_tries;
  options->max_region_bytes = defaults.max_region_bytes;
}

void attnd_client_request_init(attnd_client_request* request, uint64_t struct_size_bytes) {
  if (!s::Zero(request, struct_size_bytes)) return;
  request->timeout_us = ATTND_CLIENT_NO_TIMEOUT;
}

int attnd_client_connect(const char* address, const attnd_client_options* options,
                         attnd_client** client, char* error, size_t error_size_bytes) {
  const absl::Status status = Guarded([&]() -> absl::Status {
    if (client == nullptr) return s::Null("client");
    *client = nullptr;
    if (address == nullptr) return s::Null("address");
    const absl::StatusOr<c::ClientOptions> read = s::ReadOptions(options);
    if (!read.ok()) return read.status();
    absl::StatusOr<std::unique_ptr<c::Client>> connected = c::Client::Connect(address, *read);
    if (!connected.ok()) return connected.status();
    *client = new attnd_client{*std::move(connected)};
    return absl::OkStatus();
  });
  return Report(status, error, error_size_bytes);
}

void attnd_client_close(attnd_client* client) { delete client; }

int attnd_client_compute(attnd_client* client, const attnd_client_request* request,
                         attnd_client_result* result) {
  attnd_client_result filled = {};
  absl::Status status = CheckResult(result);
  if (!status.ok()) return CodeOf(status);
  status = Guarded([&]() -> absl::Status {
    attnd_client_call call;
    if (absl::Status started = StartCall(client, request, true, call); !started.ok())
      return started;
    Wait(call, absl::InfiniteDuration(), filled);
    return absl::OkStatus();
  });
  if (!status.ok()) filled = s::FailureOf(status, {});
  return GiveResult(filled, result);
}

int attnd_client_start(attnd_client* client, const attnd_client_request* request,
                       attnd_client_call** call, char* error, size_t error_size_bytes) {
  const absl::Status status = Guarded([&]() -> absl::Status {
    if (call == nullptr) return s::Null("call");
    *call = nullptr;
    auto started = std::make_unique<attnd_client_call>();
    const bool waits = request != nullptr && request->waits_at_once != 0;
    if (absl::Status bad = StartCall(client, request, waits, *started); !bad.ok()) return bad;
    *call = started.release();
    return absl::OkStatus();
  });
  return Report(status, error, error_size_bytes);
}

int attnd_client_wait(attnd_client_call* call, int64_t timeout_us, attnd_client_result* result) {
  attnd_client_result filled = {};
  absl::Status status = CheckResult(result);
  if (!status.ok()) return CodeOf(status);
  bool ended = true;
  status = Guarded([&]() -> absl::Status {
    if (call == nullptr) return s::Null("call");
    ended = Wait(*call, s::ToDuration(timeout_us), filled);
    return absl::OkStatus();
  });
  if (!status.ok()) filled = s::FailureOf(status, {});
  return ended ? GiveResult(filled, result) : ATTND_CLIENT_RUNNING;
}

void attnd_client_cancel(attnd_client_call* call) {
  if (call != nullptr) call->call->Cancel();
}

void attnd_client_release(attnd_client_call* call) { delete call; }

int attnd_client_get_server_info(attnd_client* client, int64_t timeout_us,
                                 attnd_client_server_info* info, char* error,
                                 size_t error_size_bytes) {
  const absl::Status status = Guarded([&]() -> absl::Status {
    if (client == nullptr) return s::Null("client");
    if (absl::Status bad = s::CheckSize("info", info); !bad.ok()) return bad;
    const absl::StatusOr<c::ServerInfo> asked =
        client->client->GetServerInfo(s::ToDuration(timeout_us));
    if (!asked.ok()) return asked.status();
    s::Give(s::InfoOf(*asked), info);
    return absl::OkStatus();
  });
  return Report(status, error, error_size_bytes);
}

}  // extern "C"
