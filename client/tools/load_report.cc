#include "client/tools/load_report.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace attnd::tools {
namespace {

const char* CausalName(Causal causal) {
  return causal == Causal::kNone      ? "none"
         : causal == Causal::kTopLeft ? "top-left"
                                      : "bottom-right";
}

double PerSecond(double count, const LoadResult& result) {
  return count / absl::ToDoubleSeconds(result.elapsed);
}

}  // namespace

std::string ToJson(const LoadOptions& options, const LoadResult& result) {
  nlohmann::ordered_json codes = nlohmann::ordered_json::object();
  for (const auto& [code, count] : result.failed_by_code) {
    codes[absl::StatusCodeToString(code)] = count;
  }
  nlohmann::ordered_json json = {
      {"concurrency", options.concurrency},
      {"dtype", DTypeName(options.dtype)},
      {"causal", CausalName(options.causal)},
      {"q_shape", {options.batch, options.q_heads, options.q_len, options.head_dim}},
      {"kv_shape", {options.batch, options.kv_heads, options.kv_len, options.head_dim}},
      {"seed", options.seed},
      {"duration_s", absl::ToDoubleSeconds(result.elapsed)},
      {"sent", result.sent},
      {"answered", result.answered},
      {"answered_by_device", result.answered_by_device},
      {"failed", result.failed()},
      {"failed_by_code", codes},
      {"lost", result.lost()},
      {"retries", result.retries},
      {"answered_per_s", PerSecond(static_cast<double>(result.answered), result)},
      {"gb_per_s", PerSecond(static_cast<double>(result.payload_bytes) * 1e-9, result)},
      {"p50_us", result.latency.PercentileUs(50)},
      {"p90_us", result.latency.PercentileUs(90)},
      {"p99_us", result.latency.PercentileUs(99)},
      {"max_us", result.latency.max_us()},
      {"verified", result.verified},
      {"wrong", result.wrong}};
  if (!result.first_error.ok()) json["first_error"] = std::string(result.first_error.message());
  if (result.verified > 0) {
    json["bound"] = result.bound;
    json["worst_rel_error"] = std::isfinite(result.worst_rel_error)
                                  ? nlohmann::ordered_json(result.worst_rel_error)
                                  : nlohmann::ordered_json("inf");
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string ToTable(const LoadOptions& options, const LoadResult& result) {
  std::string table = absl::StrFormat(
      "load       %d callers for %.1f s, %s, causal %s\n"
      "shape      q [%d,%d,%d,%d], k and v [%d,%d,%d,%d]\n"
      "calls      %d sent, %d answered, %d failed, %d retries\n"
      "rate       %.1f answered/s, %.3f GB/s both ways\n"
      "latency    p50 %d us, p90 %d us, p99 %d us, max %d us\n",
      options.concurrency, absl::ToDoubleSeconds(result.elapsed), DTypeName(options.dtype),
      CausalName(options.causal), options.batch, options.q_heads, options.q_len, options.head_dim,
      options.batch, options.kv_heads, options.kv_len, options.head_dim, result.sent,
      result.answered, result.failed(), result.retries,
      PerSecond(static_cast<double>(result.answered), result),
      PerSecond(static_cast<double>(result.payload_bytes) * 1e-9, result),
      result.latency.PercentileUs(50), result.latency.PercentileUs(90),
      result.latency.PercentileUs(99), result.latency.max_us());
  if (result.answered_by_device.size() > 1) {
    for (const auto& [device, count] : result.answered_by_device) {
      absl::StrAppendFormat(&table, "device     %d answered by %s\n", count, device);
    }
  }
  for (const auto& [code, count] : result.failed_by_code) {
    absl::StrAppendFormat(&table, "failed     %d with %s\n", count, absl::StatusCodeToString(code));
  }
  if (!result.first_error.ok()) {
    absl::StrAppend(&table, "           such as: ", result.first_error.message(), "\n");
  }
  if (result.verified > 0) {
    absl::StrAppendFormat(&table, "verified   %d against fp64, %d wrong, worst %.3e, bound %.1e\n",
                          result.verified, result.wrong, result.worst_rel_error, result.bound);
  }
  return table;
}

}  // namespace attnd::tools
