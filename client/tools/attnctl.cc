// attnctl: asks an attnd what it is, how it is, and for attention.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/client.h"
#include "client/tools/args.h"
#include "client/tools/run_command.h"
#include "client/tools/tool.h"
#include "nlohmann/json.hpp"

namespace attnd::tools {
namespace {

std::vector<Flag> ServerFlags() {
  return {{"server", "HOST:PORT", absl::StrCat("default ", kDefaultServer, "; or unix:/path")},
          {"timeout_ms", "MS", "default 5000"},
          {"json", "", "print one JSON object"}};
}

int Fail(const char* command, const absl::Status& status, const std::string& server,
         int exit_code) {
  std::fprintf(stderr, "attnctl %s: %s\n", command, Explain(status, server).c_str());
  return exit_code;
}

void PrintInfo(const ServerInfo& info) {
  std::printf("version   %s, instance %s\nbackend   %s (%s)\n", info.version.c_str(),
              info.instance_id.c_str(), info.backend.c_str(), info.backend_reason.c_str());
  for (const ServerInfo::Device& device : info.devices) {
    std::printf("device    %s: %s, %lld processors; backends %s\n", device.id.c_str(),
                device.name.c_str(), static_cast<long long>(device.processors),
                absl::StrJoin(device.backends, ", ").c_str());
  }
  std::printf("regions   on GPUs are %s\n", info.takes_cuda_memory ? "taken" : "not taken");
  std::printf("%s", absl::StrCat("limits    message ", info.max_unary_bytes, " bytes, stream ",
                                 info.max_stream_bytes, " bytes, queue ", info.max_queue_requests,
                                 " requests and ", info.max_queue_bytes, " bytes, batch ",
                                 info.max_batch_problems, " problems,\n", "          head_dim ",
                                 info.max_head_dim, ", receive ", info.receive_bytes,
                                 " bytes, deadline ", info.default_deadline_ms, " ms\n")
                        .c_str());
}

void PrintInfoJson(const ServerInfo& info) {
  nlohmann::ordered_json json = {{"version", info.version},
                                 {"instance_id", info.instance_id},
                                 {"backend", info.backend},
                                 {"backend_reason", info.backend_reason},
                                 {"takes_cuda_memory", info.takes_cuda_memory},
                                 {"devices", nlohmann::ordered_json::array()},
                                 {"max_unary_bytes", info.max_unary_bytes},
                                 {"max_header_bytes", info.max_header_bytes},
                                 {"max_queue_requests", info.max_queue_requests},
                                 {"max_queue_bytes", info.max_queue_bytes},
                                 {"max_batch_problems", info.max_batch_problems},
                                 {"max_head_dim", info.max_head_dim},
                                 {"default_deadline_ms", info.default_deadline_ms},
                                 {"receive_bytes", info.receive_bytes},
                                 {"max_stream_bytes", info.max_stream_bytes}};
  for (const ServerInfo::Device& device : info.devices) {
    json["devices"].push_back({{"id", device.id},
                               {"name", device.name},
                               {"processors", device.processors},
                               {"backends", device.backends}});
  }
  std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

int Info(Client& client, const std::string& server, absl::Duration timeout, bool json) {
  const auto info = client.GetServerInfo(timeout);
  if (!info.ok()) return Fail("info", info.status(), server, kFailed);
  json ? PrintInfoJson(*info) : PrintInfo(*info);
  return kOk;
}

int Health(Client& client, const std::string& server, absl::Duration timeout, bool json) {
  const absl::Status status = client.CheckHealth(timeout);
  if (json) {
    const nlohmann::ordered_json answer = {{"serving", status.ok()},
                                           {"message", std::string(status.message())}};
    std::printf("%s\n", answer.dump().c_str());
  } else if (status.ok()) {
    std::printf("%s: SERVING\n", server.c_str());
  }
  return status.ok() ? kOk : Fail("health", status, server, kFailed);
}

int Usage(FILE* out) {
  std::fprintf(out,
               "usage: attnctl info|health [flags]\n%s\n"
               "       attnctl run --q FILE --k FILE --v FILE [flags]\n%s\n"
               "exit status: 0 ok, 1 failed, 2 usage\n",
               FlagsUsage(ServerFlags()).c_str(), FlagsUsage(RunFlags()).c_str());
  return out == stdout ? kOk : kUsage;
}

int Main(const std::vector<std::string>& words) {
  if (words.empty()) return Usage(stderr);
  const std::string& command = words[0];
  if (command == "help" || command == "--help" || command == "-h") return Usage(stdout);
  const bool is_run = command == "run";
  if (!is_run && command != "info" && command != "health") {
    std::fprintf(stderr, "attnctl: there is no command \"%s\"\n", command.c_str());
    return Usage(stderr);
  }
  const auto args =
      Args::Parse({words.begin() + 1, words.end()}, is_run ? RunFlags() : ServerFlags());
  if (!args.ok()) {
    std::fprintf(stderr, "attnctl %s: %s\n", command.c_str(),
                 std::string(args.status().message()).c_str());
    return Usage(stderr);
  }
  if (is_run) return Run(*args);

  const std::string server = args->Get("server").value_or(kDefaultServer);
  int64_t timeout_ms = 5000;
  absl::Status status = args->Read("timeout_ms", 1, int64_t{1} << 40, &timeout_ms);
  const auto client = Client::Connect(server);
  status.Update(client.status());
  if (!status.ok()) return Fail(command.c_str(), status, server, kUsage);
  return (command == "info" ? Info : Health)(**client, server, absl::Milliseconds(timeout_ms),
                                             args->Has("json"));
}

}  // namespace
}  // namespace attnd::tools

int main(int argc, char** argv) {
  attnd::tools::TuneProcess();
  attnd::UsePolling();
  return attnd::tools::Main({argv + 1, argv + argc});
}
