// attnload: keeps an attnd busy and tells how it did.
#include <csignal>
#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/tools/args.h"
#include "client/tools/load.h"
#include "client/tools/load_report.h"
#include "client/tools/tool.h"

namespace attnd::tools {
namespace {

std::atomic<bool> stopped{false};

std::vector<Flag> LoadFlags() {
  return {
      {"server", "HOST:PORT", absl::StrCat("default ", kDefaultServer, "; or unix:/path")},
      {"concurrency", "N", "callers, each with one call at a time; default 4"},
      {"duration", "TIME", "10 or 10s (default), 500ms, 2m"},
      {"warmup", "TIME", "before that, not counted; default 1s"},
      {"batch", "N", "default 1"},
      {"q_heads", "N", "default 8"},
      {"kv_heads", "N", "default as q_heads"},
      {"q_len", "N", "default 512"},
      {"kv_len", "N", "default as q_len"},
      {"head_dim", "N", "default 64"},
      {"dtype", "DTYPE", "float32, float16 (default) or bfloat16"},
      {"causal", "ALIGNMENT", "bottom-right, top-left or none (default)"},
      {"seed", "N", "of the random inputs; default 1"},
      {"transport", "HOW",
       "unary, stream, region (shared memory, on one host) or auto (default): the best that the "
       "size and the server allow"},
      {"local_socket", "PATH", "the server's --local_socket; none: no shared memory"},
      {"timeout_ms", "MS", "of each call; default none"},
      {"max_tries", "N", "of each call; default 4"},
      {"verify", "SHARE", "of the answers to check against fp64, 0 (default) to 1"},
      {"json", "", "print one JSON object"}};
}

absl::Status ReadNames(const Args& args, LoadOptions* options) {
  const std::string dtype = args.Get("dtype").value_or("float16");
  bool known = false;
  for (DType candidate : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    if (dtype != DTypeName(candidate)) continue;
    options->dtype = candidate;
    known = true;
  }
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype is \"", dtype, "\", must be float32, float16 or bfloat16"));
  }
  const std::string causal = args.Get("causal").value_or("none");
  if (causal == "bottom-right") {
    options->causal = Causal::kBottomRight;
  } else if (causal == "top-left") {
    options->causal = Causal::kTopLeft;
  } else if (causal != "none") {
    return absl::InvalidArgumentError(
        absl::StrCat("--causal is \"", causal, "\", must be bottom-right, top-left or none"));
  }
  return absl::OkStatus();
}

absl::Status ReadOptions(const Args& args, LoadOptions* options, ClientOptions* client) {
  constexpr int64_t kMost = int64_t{1} << 31;
  absl::Status status = ReadNames(args, options);
  status.Update(ReadTransport(args, &options->transport));
  status.Update(args.Read("local_socket", &client->local_socket));
  status.Update(args.Read("concurrency", 1, 4096, &options->concurrency));
  status.Update(args.Read("duration", &options->duration));
  status.Update(args.Read("warmup", &options->warmup));
  status.Update(args.Read("batch", 0, kMost, &options->batch));
  status.Update(args.Read("q_heads", 0, kMost, &options->q_heads));
  status.Update(args.Read("q_len", 0, kMost, &options->q_len));
  options->kv_heads = options->q_heads;
  options->kv_len = options->q_len;
  status.Update(args.Read("kv_heads", 0, kMost, &options->kv_heads));
  status.Update(args.Read("kv_len", 0, kMost, &options->kv_len));
  status.Update(args.Read("head_dim", 0, kMost, &options->head_dim));
  status.Update(args.Read("seed", 0, std::numeric_limits<int32_t>::max(), &options->seed));
  status.Update(args.Read("verify", 0.0, 1.0, &options->verify_share));
  int64_t max_tries = client->max_tries;
  int64_t timeout_ms = 0;
  status.Update(args.Read("max_tries", 1, 100, &max_tries));
  status.Update(args.Read("timeout_ms", 1, int64_t{1} << 40, &timeout_ms));
  client->max_tries = static_cast<int>(max_tries);
  if (timeout_ms > 0) options->timeout = absl::Milliseconds(timeout_ms);
  const TensorView q{options->dtype,
                     {options->batch, options->q_heads, options->q_len, options->head_dim},
                     nullptr};
  const TensorView kv{options->dtype,
                      {options->batch, options->kv_heads, options->kv_len, options->head_dim},
                      nullptr};
  for (int64_t bytes : {q.size_bytes(), kv.size_bytes()}) {
    if (bytes < kMost) continue;
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("the shape means ", bytes, " bytes a tensor, must be below ", kMost)));
  }
  return status;
}

int Fail(const absl::Status& status, const std::string& server, int exit_code) {
  std::fprintf(stderr, "attnload: %s\n", Explain(status, server).c_str());
  return exit_code;
}

int Usage(FILE* out) {
  std::fprintf(out,
               "usage: attnload [flags]\n%s\n"
               "exit status: 0 ok, 1 an answer was wrong, or there was none, 2 usage\n",
               FlagsUsage(LoadFlags()).c_str());
  return out == stdout ? kOk : kUsage;
}

int Main(const std::vector<std::string>& words) {
  if (!words.empty() && (words[0] == "--help" || words[0] == "help" || words[0] == "-h")) {
    return Usage(stdout);
  }
  const auto args = Args::Parse(words, LoadFlags());
  LoadOptions options;
  ClientOptions client_options;
  const absl::Status status =
      args.ok() ? ReadOptions(*args, &options, &client_options) : args.status();
  if (!status.ok()) {
    std::fprintf(stderr, "attnload: %s\n", std::string(status.message()).c_str());
    return Usage(stderr);
  }
  const std::string server = args->Get("server").value_or(kDefaultServer);
  const auto client = Client::Connect(server, client_options);
  if (!client.ok()) return Fail(client.status(), server, kUsage);
  if (absl::Status health = (*client)->CheckHealth(absl::Seconds(5)); !health.ok()) {
    return Fail(health, server, kFailed);
  }
  std::signal(SIGINT, [](int) { stopped = true; });
  std::signal(SIGTERM, [](int) { stopped = true; });
  const auto result = RunLoad(**client, options, stopped);
  if (!result.ok()) return Fail(result.status(), server, kFailed);
  std::fputs((args->Has("json") ? ToJson(options, *result) : ToTable(options, *result)).c_str(),
             stdout);
  const bool good = result->wrong == 0 && result->lost() == 0 && result->answered > 0;
  return good ? kOk : kFailed;
}

}  // namespace
}  // namespace attnd::tools

int main(int argc, char** argv) {
  attnd::tools::TuneProcess();
  return attnd::tools::Main({argv + 1, argv + argc});
}
