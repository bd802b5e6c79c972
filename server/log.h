// The server's log: one line per event on stderr, `ts=... level=... event=... key=value ...`.
#ifndef ATTND_SERVER_LOG_H_
#define ATTND_SERVER_LOG_H_

#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace attnd::server {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Lives no longer than the statement that it is written in.
struct LogField {
  absl::string_view key;
  const absl::AlphaNum& value;
};

// "debug", "info", "warning", "error" or "off"; gRPC's own messages come through the same log.
// INVALID_ARGUMENT for anything else. Not thread-safe: once, at the start.
absl::Status SetUpLog(absl::string_view level);

bool LogEnabled(LogLevel level);

// Values are quoted where they need it, so that no caller can forge a line or a key. Thread-safe.
void LogEvent(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields = {});

// As LogEvent writes a value: unchanged if it is plain, otherwise in quotes with C escapes.
std::string QuoteForLog(absl::string_view value);

}  // namespace attnd::server

#endif  // ATTND_SERVER_LOG_H_
