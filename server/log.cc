#include "server/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "grpc/support/log.h"

namespace attnd::server {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

// gRPC says "error" of much that a caller can cause; what matters of it the server reports itself.
void LogFromGrpc(gpr_log_func_args* args) {
  const LogLevel level =
      args->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kDebug;
  LogEvent(level, "grpc", {{"message", args->message}});
}

}  // namespace

absl::Status SetUpLog(absl::string_view level) {
  spdlog::level::level_enum threshold;
  if (level == "off") {
    threshold = spdlog::level::off;
  } else if (level == "debug") {
    threshold = spdlog::level::debug;
  } else if (level == "info") {
    threshold = spdlog::level::info;
  } else if (level == "warning") {
    threshold = spdlog::level::warn;
  } else if (level == "error") {
    threshold = spdlog::level::err;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--log_level=", level, ": must be one of debug, info, warning, error, off"));
  }
  auto logger =
      std::make_shared<spdlog::logger>("attnd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("ts=%Y-%m-%dT%H:%M:%S.%fZ level=%l %v", spdlog::pattern_time_type::utc);
  logger->set_level(threshold);
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(&LogFromGrpc);
  return absl::OkStatus();
}

bool LogEnabled(LogLevel level) {
  return spdlog::default_logger_raw()->should_log(ToSpdlog(level));
}

std::string QuoteForLog(absl::string_view value) {
  const bool plain = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '"' && c != '=' && c != '\\';
  });
  if (plain) return std::string(value);
  return absl::StrCat("\"", absl::CHexEscape(value), "\"");
}

void LogEvent(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) return;
  std::string line = absl::StrCat("event=", event);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.key, "=", QuoteForLog(field.value.Piece()));
  }
  spdlog::default_logger_raw()->log(ToSpdlog(level), "{}", line);
}

}  // namespace attnd::server
