#include "client/tools/run_report.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace attnd::tools {
namespace {

// JSON has no infinity.
nlohmann::ordered_json Number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : "inf";
}

std::string Shape(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

}  // namespace

std::string ToJson(const RunReport& report) {
  const AttentionResult& result = *report.result;
  nlohmann::ordered_json json = {{"server", report.server},
                                 {"backend", result.backend},
                                 {"kernel", result.kernel},
                                 {"device", result.device},
                                 {"dtype", DTypeName(result.o.dtype)},
                                 {"shape", result.o.shape},
                                 {"kv_shape", report.request->k.shape},
                                 {"queue_us", result.timing.queue_us},
                                 {"upload_us", result.timing.upload_us},
                                 {"run_us", result.timing.run_us},
                                 {"download_us", result.timing.download_us},
                                 {"total_us", result.timing.total_us},
                                 {"batch_id", result.batch_id},
                                 {"batch_size", result.batch_size},
                                 {"sent_bytes", result.sent_bytes},
                                 {"received_bytes", result.received_bytes},
                                 {"tries", result.tries},
                                 {"transport", TransportName(result.transport)}};
  if (report.verification) {
    json["rel_error"] = Number(report.verification->rel_error);
    if (report.verification->lse_rel_error) {
      json["lse_rel_error"] = Number(*report.verification->lse_rel_error);
    }
    json["bound"] = report.verification->bound;
    json["ok"] = report.verification->ok();
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string ToTable(const RunReport& report) {
  const AttentionResult& result = *report.result;
  const ServerTiming& timing = result.timing;
  std::string table = absl::StrFormat(
      "server    %s (%s)\nkernel    %s, backend %s\nshape     %s %s on %s keys\n"
      "time      queue %d us, upload %d us, run %d us, download %d us, total %d us\n"
      "batch     number %d, %d problem(s)\nbytes     %d sent, %d received, %d try(s), %s\n",
      report.server, result.device, result.kernel, result.backend, DTypeName(result.o.dtype),
      Shape(result.o.shape), Shape(report.request->k.shape), timing.queue_us, timing.upload_us,
      timing.run_us, timing.download_us, timing.total_us, result.batch_id, result.batch_size,
      result.sent_bytes, result.received_bytes, result.tries, TransportName(result.transport));
  if (report.verification) {
    const Verification& checked = *report.verification;
    absl::StrAppendFormat(&table, "error     %.3e against fp64, bound %.1e: %s\n",
                          checked.rel_error, checked.bound, checked.ok() ? "ok" : "TOO LARGE");
    if (checked.lse_rel_error) {
      absl::StrAppendFormat(&table, "lse error %.3e against fp64\n", *checked.lse_rel_error);
    }
  }
  return table;
}

}  // namespace attnd::tools
