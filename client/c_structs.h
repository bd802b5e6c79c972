// The structs of attnd_client.h as the C++ client's, and back.
#ifndef ATTND_CLIENT_C_STRUCTS_H_
#define ATTND_CLIENT_C_STRUCTS_H_

#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/attnd_client.h"
#include "client/client.h"

namespace attnd::client {

// Of each struct's first version: a caller knows at least this much. Fields are added at the end,
// these numbers stay.
template <typename T>
inline constexpr uint64_t kMinBytes = 0;
template <>
inline constexpr uint64_t kMinBytes<attnd_client_options> = 32;
template <>
inline constexpr uint64_t kMinBytes<attnd_client_request> = 208;
template <>
inline constexpr uint64_t kMinBytes<attnd_client_result> = 2096;
template <>
inline constexpr uint64_t kMinBytes<attnd_client_server_info> = 4904;
static_assert(sizeof(attnd_client_options) == kMinBytes<attnd_client_options>);
static_assert(sizeof(attnd_client_request) == kMinBytes<attnd_client_request>);
static_assert(sizeof(attnd_client_result) == kMinBytes<attnd_client_result>);
static_assert(sizeof(attnd_client_server_info) == kMinBytes<attnd_client_server_info>);

// Cut to its place, and ended by 0.
void CopyText(absl::string_view text, char* to, size_t size_bytes);

absl::Status Null(absl::string_view name);

// INVALID_ARGUMENT or UNIMPLEMENTED for a struct that this library does not know by its size.
template <typename T>
absl::Status CheckSize(const char* name, const T* from) {
  if (from == nullptr) return Null(name);
  if (from->struct_size_bytes < kMinBytes<T>) {
    return absl::InvalidArgumentError(absl::StrCat(name, ".struct_size_bytes is ",
                                                   from->struct_size_bytes,
                                                   "; it must be at least ", kMinBytes<T>));
  }
  if (from->struct_size_bytes > sizeof(T)) {
    return absl::UnimplementedError(
        absl::StrCat(name, ".struct_size_bytes is ", from->struct_size_bytes, "; this library, ",
                     ATTND_VERSION, ", knows ", sizeof(T), ": a newer one is needed"));
  }
  return absl::OkStatus();
}

// Zeroed, with its size. False, and left alone: NULL, or smaller than its first version.
template <typename T>
bool Zero(T* to, uint64_t struct_size_bytes) {
  if (to == nullptr || struct_size_bytes < kMinBytes<T>) return false;
  std::memset(to, 0, struct_size_bytes);
  to->struct_size_bytes = struct_size_bytes;
  return true;
}

// Gives the caller as much of it as it knows.
template <typename T>
void Give(T from, T* to) {
  from.struct_size_bytes = to->struct_size_bytes;
  std::memcpy(to, &from, to->struct_size_bytes);
}

// ATTND_CLIENT_NO_TIMEOUT is for ever.
absl::Duration ToDuration(int64_t timeout_us);

// INVALID_ARGUMENT names the field and its value.
absl::StatusOr<ClientOptions> ReadOptions(const attnd_client_options* from);
absl::StatusOr<AttentionRequest> ReadRequest(const attnd_client_request* from);

attnd_client_result FailureOf(const absl::Status& status, const Failure& failure);
attnd_client_result AccountOf(const AttentionResult& from);
attnd_client_server_info InfoOf(const ServerInfo& from);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_C_STRUCTS_H_
