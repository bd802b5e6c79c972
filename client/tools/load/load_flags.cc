#include "client/tools/load/load_flags.h"

#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/tools/tool.h"

namespace attnd::tools {
namespace {

constexpr int64_t kMostCallers = 4096;
constexpr size_t kMostSteps = 256;

absl::Status BadValue(const std::string& name, const std::string& value,
                      const std::string& wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " is \"", value, "\", must be ", wanted));
}

absl::Status ReadKind(const Args& args, CallKind* kind) {
  for (const std::string& name : CallKindFields()) {
    const auto value = args.Get(name);
    if (!value) continue;
    const absl::Status status = SetField(name, *value, kind);
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("--", status.message()));
  }
  return CheckSizes(*kind);
}

// A list with commas, each read by `read`.
template <typename T, typename ReadOne>
absl::Status ReadList(const Args& args, const std::string& name, ReadOne read,
                      std::vector<T>* list) {
  const auto text = args.Get(name);
  if (!text) return absl::OkStatus();
  list->clear();
  for (const absl::string_view part : absl::StrSplit(*text, ',')) {
    absl::StatusOr<T> one = read(std::string(part));
    if (!one.ok()) return one.status();
    list->push_back(*std::move(one));
    if (list->size() > kMostSteps) {
      return BadValue(name, *text, absl::StrCat("a list of at most ", kMostSteps));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ParseConcurrency(const std::string& text) {
  int64_t value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= 1 && value <= kMostCallers) return value;
  return BadValue("concurrency", text, absl::StrCat("a whole number in 1..", kMostCallers));
}

absl::StatusOr<double> ParseSpeed(const std::string& text) {
  double value = 0;
  if (absl::SimpleAtod(text, &value) && value >= 1e-3 && value <= 1e6) return value;
  return BadValue("speed", text, "a number in 0.001..1e6");
}

absl::Status ReadRates(const Args& args, Plan* plan) {
  absl::Status status = ReadList<PlannedRate>(args, "rate", ParseRate, &plan->rates);
  const std::string arrivals = args.Get("arrivals").value_or("poisson");
  if (arrivals != "poisson" && arrivals != "constant") {
    status.Update(BadValue("arrivals", arrivals, "poisson or constant"));
  }
  int64_t burst = 1;
  status.Update(args.Read("burst", 1, kMostCallers, &burst));
  for (PlannedRate& rate : plan->rates) {
    rate.shape.poisson = arrivals == "poisson";
    rate.shape.burst = burst;
  }
  return status;
}

absl::Status ReadWork(const Args& args, Plan* plan) {
  CallKind kind;
  if (absl::Status status = ReadKind(args, &kind); !status.ok()) return status;
  plan->kinds = {kind};
  if (const auto path = args.Get("mix")) {
    auto kinds = ReadMix(*path, kind);
    if (!kinds.ok()) return kinds.status();
    plan->kinds = *std::move(kinds);
  }
  if (const auto path = args.Get("trace")) {
    auto trace = ReadTrace(*path, kind);
    if (!trace.ok()) return trace.status();
    plan->trace = *std::move(trace);
  }
  absl::Status status = ReadList<double>(args, "speed", ParseSpeed, &plan->speeds);
  status.Update(ReadTransport(args, &plan->transport));
  return status;
}

// "0" too: no warm-up.
absl::Status ReadWarmup(const Args& args, absl::Duration* warmup) {
  const auto text = args.Get("warmup");
  if (!text || *text != "0") return args.Read("warmup", warmup);
  *warmup = absl::ZeroDuration();
  return absl::OkStatus();
}

absl::Status ReadStep(const Args& args, StepOptions* step) {
  absl::Status status = args.Read("duration", &step->duration);
  status.Update(ReadWarmup(args, &step->warmup));
  status.Update(args.Read("window", &step->window));
  if (step->window < absl::Milliseconds(10)) {
    status.Update(BadValue("window", *args.Get("window"), "10ms or more"));
  }
  step->until_stable = args.Has("until_stable");
  status.Update(args.Read("tolerance", 0.0, 1.0, &step->tolerance));
  status.Update(args.Read("percentile", 0.0, 100.0, &step->percentile));
  status.Update(args.Read("settle", &step->settle));
  status.Update(args.Read("senders", 1, 64, &step->senders));
  FlightOptions& flights = step->flights;
  status.Update(args.Read("max_in_flight", 1, 1 << 20, &flights.max_in_flight));
  status.Update(args.Read("verify", 0.0, 1.0, &flights.verify_share));
  status.Update(args.Read("cancel", 0.0, 1.0, &flights.cancel_share));
  status.Update(args.Read("cancel_after", &flights.cancel_after));
  status.Update(args.Read("seed", 0, std::numeric_limits<int32_t>::max(), &flights.seed));
  return status;
}

absl::Status ReadMetadata(const Args& args, ClientOptions* client) {
  const auto text = args.Get("metadata");
  if (!text) return absl::OkStatus();
  const std::pair<std::string, std::string> entry = absl::StrSplit(*text, absl::MaxSplits('=', 1));
  if (!absl::StrContains(*text, '=')) return BadValue("metadata", *text, "NAME=VALUE");
  client->metadata.push_back(entry);
  return absl::OkStatus();
}

absl::Status ReadClient(const Args& args, ClientOptions* client) {
  int64_t max_tries = client->max_tries;
  absl::Status status = args.Read("local_socket", &client->local_socket);
  status.Update(args.Read("max_tries", 1, 100, &max_tries));
  client->max_tries = static_cast<int>(max_tries);
  status.Update(ReadMetadata(args, client));
  return status;
}

// Flags that say the same thing twice, or nothing.
absl::Status CheckTogether(const Args& args) {
  const std::vector<std::pair<std::string, std::string>> exclusive = {
      {"trace", "rate"}, {"trace", "mix"}, {"trace", "slo"}, {"trace", "warmup"}, {"json", "csv"}};
  for (const auto& [one, other] : exclusive) {
    if (!args.Has(one) || !args.Has(other)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", one, " and --", other, " exclude each other"));
  }
  const std::vector<std::pair<std::string, std::string>> needs = {
      {"speed", "trace"}, {"burst", "rate"}, {"arrivals", "rate"}, {"cancel_after", "cancel"}};
  for (const auto& [one, other] : needs) {
    if (!args.Has(one) || args.Has(other)) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", one, " needs --", other));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlannedRate> ParseRate(const std::string& text) {
  PlannedRate rate;
  std::vector<std::string> ends = absl::StrSplit(text, absl::MaxSplits("..", 1));
  rate.of_capacity = true;
  for (const std::string& end : ends) rate.of_capacity &= absl::EndsWith(end, "%");
  const double unit = rate.of_capacity ? 0.01 : 1;
  double* const values[] = {&rate.shape.from_per_s, &rate.shape.to_per_s};
  for (size_t i = 0; i < 2; ++i) {
    std::string end = ends[std::min(i, ends.size() - 1)];
    if (rate.of_capacity) end.pop_back();
    if (!absl::SimpleAtod(end, values[i]) || !(*values[i] >= 1e-3 && *values[i] <= 1e7)) {
      return BadValue("rate", text,
                      "calls a second in 0.001..1e7, a part of the capacity such as 80%, or two "
                      "of a kind such as 100..400");
    }
    *values[i] *= unit;
  }
  return rate;
}

absl::StatusOr<CommandLine> ReadCommandLine(const std::vector<std::string>& words) {
  const auto args = Args::Parse(words, LoadFlags());
  if (!args.ok()) return args.status();
  CommandLine line;
  line.server = args->Get("server").value_or(kDefaultServer);
  line.json = args->Has("json");
  line.csv = args->Has("csv");
  line.html = args->Get("html").value_or("");
  Plan& plan = line.plan;
  absl::Status status = CheckTogether(*args);
  status.Update(ReadClient(*args, &line.client));
  status.Update(ReadStep(*args, &plan.step));
  status.Update(ReadList<int64_t>(*args, "concurrency", ParseConcurrency, &plan.concurrency));
  status.Update(ReadRates(*args, &plan));
  status.Update(args->Read("connections", 1, 256, &plan.connections));
  if (const auto text = args->Get("slo")) {
    const auto slo = ParseSlo(*text);
    status.Update(slo.status());
    if (slo.ok()) plan.slo = *slo;
    if (plan.rates.size() > 1) {
      status.Update(BadValue("rate", *args->Get("rate"), "one rate, with --slo"));
    }
  }
  if (status.ok()) status = ReadWork(*args, &plan);
  if (!status.ok()) return status;
  return line;
}

std::vector<Flag> LoadFlags() {
  return {
      {"server", "HOST:PORT", absl::StrCat("default ", kDefaultServer, "; or unix:/path")},
      {"concurrency", "N[,N...]",
       "closed loop: callers, each with one call at a time, a step each; default 4"},
      {"rate", "R[,R...]",
       "open loop: calls a second, a step each; 80%: of what --concurrency callers reach in a "
       "step before; 100..400: a ramp"},
      {"arrivals", "HOW", "of --rate: poisson (default) or constant"},
      {"burst", "N", "of --rate: calls that come together; default 1"},
      {"trace", "FILE", "replay: lines such as at_ms=31.5 q_len=812 priority=1 timeout_ms=500"},
      {"speed", "X[,X...]", "of --trace: times as fast, a step each; default 1"},
      {"slo", "P=TIME", "such as p99=20ms: find the highest rate that holds it, by bisection"},
      {"duration", "TIME", "of a step: 10 or 10s (default), 500ms, 2m"},
      {"warmup", "TIME", "before each step, not counted; default 1s; 0: none"},
      {"window", "TIME", "of which the last three tell whether a step is stable; default 1s"},
      {"until_stable", "", "end a step before its time once it is stable"},
      {"tolerance", "X", "of stability, around the mean of three windows; default 0.1"},
      {"percentile", "P", "of latency that is to be stable; default 99"},
      {"mix", "FILE", "kinds of calls by weight: lines such as weight=3 q_len=128 priority=1"},
      {"batch", "N", "default 1"},
      {"q_heads", "N", "default 8"},
      {"kv_heads", "N", "default as q_heads"},
      {"q_len", "N", "default 512"},
      {"kv_len", "N", "default as q_len"},
      {"head_dim", "N", "default 64"},
      {"dtype", "DTYPE", "float32, float16 (default) or bfloat16"},
      {"causal", "ALIGNMENT", "bottom-right, top-left or none (default)"},
      {"window_left", "N", "keys; default all"},
      {"window_right", "N", "keys; default all"},
      {"priority", "N", "0 (default), or 1, the highest, to 9"},
      {"timeout_ms", "MS", "of each call; default none"},
      {"seed", "N", "of inputs, arrivals and choices; default 1"},
      {"connections", "N", "clients, which take turns; default 1"},
      {"transport", "HOW",
       "unary, stream, region (shared memory, on one host) or auto (default): the best that the "
       "size and the server allow"},
      {"local_socket", "PATH", "the server's --local_socket; none: no shared memory"},
      {"metadata", "NAME=VALUE", "goes with each call, such as attnd-tenant=team-a"},
      {"max_tries", "N", "of each call; default 4"},
      {"max_in_flight", "N", "calls under way at most; more are sent late; default 4096"},
      {"senders", "N", "threads that send in an open loop; default 2"},
      {"settle", "TIME",
       "for calls under way at a step's end, before they are cancelled; "
       "default 30s"},
      {"cancel", "SHARE", "of the calls to cancel, 0 (default) to 1"},
      {"cancel_after", "TIME", "how long after they were sent; default 1ms"},
      {"verify", "SHARE", "of the answers to check against fp64, 0 (default) to 1"},
      {"json", "", "print a JSON object a step, a line each"},
      {"csv", "", "print CSV, a line a step"},
      {"html", "FILE", "write a page with figures"}};
}

}  // namespace attnd::tools
