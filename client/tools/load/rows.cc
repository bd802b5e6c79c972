#include "client/tools/load/rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace attnd::tools {
namespace {

using Json = nlohmann::ordered_json;

// In the order of a row.
const std::vector<std::string>& CsvFields() {
  static const std::vector<std::string> fields = {
      "step",     "mode",           "concurrency", "rate_per_s",    "rate_to_per_s",
      "speed",    "duration_s",     "warmup_sent", "sent",          "answered",
      "failed",   "cancelled",      "lost",        "unsent",        "retries",
      "verified", "verify_skipped", "wrong",       "offered_per_s", "answered_per_s",
      "gb_per_s", "p50_us",         "p90_us",      "p99_us",        "p999_us",
      "max_us",   "late_p99_us",    "client_cpus", "stable",        "client_bound",
      "slo_held"};
  return fields;
}

void AddOffer(const StepSpec& spec, Json* row) {
  switch (spec.mode) {
    case StepSpec::Mode::kClosed:
      (*row)["mode"] = "closed";
      (*row)["concurrency"] = spec.concurrency;
      return;
    case StepSpec::Mode::kOpen:
      (*row)["mode"] = "open";
      (*row)["rate_per_s"] = spec.rate.from_per_s;
      (*row)["rate_to_per_s"] = spec.rate.to_per_s;
      (*row)["arrivals"] = spec.rate.poisson ? "poisson" : "constant";
      (*row)["burst"] = spec.rate.burst;
      return;
    case StepSpec::Mode::kTrace:
      (*row)["mode"] = "trace";
      (*row)["speed"] = spec.speed;
      return;
  }
}

void AddWork(const Plan& plan, Json* row) {
  const std::vector<CallKind>& kinds = plan.trace ? plan.trace->kinds : plan.kinds;
  if (kinds.size() > 1) {
    (*row)["kinds"] = kinds.size();
  } else {
    const CallKind& kind = kinds.front();
    (*row)["dtype"] = DTypeName(kind.dtype);
    (*row)["causal"] = CausalName(kind.causal);
    (*row)["q_shape"] = kind.q_shape();
    (*row)["kv_shape"] = kind.kv_shape();
  }
  (*row)["transport"] = TransportName(plan.transport);
  (*row)["connections"] = plan.connections;
  (*row)["seed"] = plan.step.flights.seed;
}

void AddCounts(const StepResult& result, Json* row) {
  Json codes = Json::object();
  for (const auto& [code, count] : result.failed_by_code) {
    codes[absl::StatusCodeToString(code)] = count;
  }
  (*row)["warmup_sent"] = result.warmup_sent;
  (*row)["sent"] = result.sent;
  (*row)["answered"] = result.answered;
  (*row)["answered_by_device"] = result.answered_by_device;
  (*row)["answered_by_transport"] = result.answered_by_transport;
  (*row)["failed"] = result.failed();
  (*row)["failed_by_code"] = codes;
  (*row)["cancelled"] = result.cancelled;
  (*row)["lost"] = result.lost;
  (*row)["unsent"] = result.unsent;
  (*row)["retries"] = result.retries;
}

void AddFigures(const StepResult& result, Json* row) {
  (*row)["offered_per_s"] = result.offered_per_s();
  (*row)["answered_per_s"] = result.answered_per_s();
  (*row)["gb_per_s"] = result.gb_per_s();
  (*row)["p50_us"] = result.latency.PercentileUs(50);
  (*row)["p90_us"] = result.latency.PercentileUs(90);
  (*row)["p99_us"] = result.latency.PercentileUs(99);
  (*row)["p999_us"] = result.latency.PercentileUs(99.9);
  (*row)["max_us"] = result.latency.max_us();
  (*row)["late_p99_us"] = result.lateness.PercentileUs(99);
  const double answers = std::max<double>(1, static_cast<double>(result.answered));
  const StageSums& stages = result.stages;
  (*row)["stage_mean_us"] = {{"queue", static_cast<double>(stages.queue_us) / answers},
                             {"upload", static_cast<double>(stages.upload_us) / answers},
                             {"run", static_cast<double>(stages.run_us) / answers},
                             {"download", static_cast<double>(stages.download_us) / answers},
                             {"outside", static_cast<double>(stages.outside_us) / answers}};
  Json batches = Json::object();
  for (const auto& [size, count] : result.answered_by_batch_size) {
    batches[absl::StrCat(size)] = count;
  }
  (*row)["answered_by_batch_size"] = batches;
  (*row)["client_cpus"] = result.client_cpus;
  (*row)["stable"] = result.stable;
  (*row)["client_bound"] = result.client_bound;
}

void AddVerification(const StepResult& result, Json* row) {
  (*row)["verified"] = result.verified;
  (*row)["verify_skipped"] = result.verify_skipped;
  (*row)["wrong"] = result.wrong;
  if (result.verified == 0) return;
  (*row)["bound"] = result.bound;
  (*row)["worst_rel_error"] =
      std::isfinite(result.worst_rel_error) ? Json(result.worst_rel_error) : Json("inf");
}

}  // namespace

Json RowOf(const Plan& plan, const Step& step, size_t number) {
  Json row = {{"step", number}};
  AddOffer(step.spec, &row);
  AddWork(plan, &row);
  row["duration_s"] = absl::ToDoubleSeconds(step.result.elapsed);
  AddCounts(step.result, &row);
  AddFigures(step.result, &row);
  AddVerification(step.result, &row);
  if (step.slo_held) row["slo_held"] = *step.slo_held;
  if (!step.result.first_error.ok()) {
    row["first_error"] = std::string(step.result.first_error.message());
  }
  return row;
}

std::string ToJsonLine(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string CsvHeader() { return absl::StrJoin(CsvFields(), ",") + "\n"; }

std::string ToCsvLine(const Json& row) {
  std::vector<std::string> values;
  for (const std::string& field : CsvFields()) {
    const auto found = row.find(field);
    const bool text = found != row.end() && found->is_string();
    values.push_back(found == row.end() ? "" : text ? found->get<std::string>() : found->dump());
  }
  return absl::StrJoin(values, ",") + "\n";
}

std::string OfferedText(const StepSpec& spec) {
  if (spec.mode == StepSpec::Mode::kClosed) return absl::StrCat(spec.concurrency, " callers");
  if (spec.mode == StepSpec::Mode::kTrace) return absl::StrFormat("trace at %gx", spec.speed);
  std::string text = absl::StrFormat("%.1f/s", spec.rate.from_per_s);
  if (spec.rate.to_per_s != spec.rate.from_per_s) {
    absl::StrAppendFormat(&text, " to %.1f/s", spec.rate.to_per_s);
  }
  if (spec.rate.burst > 1) absl::StrAppend(&text, " by ", spec.rate.burst);
  return text;
}

}  // namespace attnd::tools
