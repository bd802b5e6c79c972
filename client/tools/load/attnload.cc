// attnload: keeps an attnd busy and tells how it did.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>

#include "client/client.h"
#include "client/tools/load/load_flags.h"
#include "client/tools/load/page.h"
#include "client/tools/load/rows.h"
#include "client/tools/load/table.h"
#include "client/tools/tool.h"

namespace attnd::tools {
namespace {

std::atomic<bool> stopped{false};

int Fail(const absl::Status& status, const std::string& server, int exit_code) {
  std::fprintf(stderr, "attnload: %s\n", Explain(status, server).c_str());
  return exit_code;
}

int Usage(FILE* out) {
  std::fprintf(
      out,
      "usage: attnload [flags]\n%s\n"
      "exit status: 0 ok, 1 an answer was wrong, a call lost, or no answer came, 2 usage\n",
      FlagsUsage(LoadFlags()).c_str());
  return out == stdout ? kOk : kUsage;
}

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Steps as they go by: to stdout when they are done, to a terminal while they run.
PlanEvents Show(const CommandLine& line, size_t* steps) {
  PlanEvents events;
  if (isatty(STDERR_FILENO) != 0) {
    events.on_progress = [](const Progress& progress) {
      // Cleared before the step's line comes.
      const bool done = progress.part >= 1;
      std::fprintf(stderr, "\r\033[K%s", done ? "" : ProgressBar(progress).c_str());
    };
  }
  events.on_end = [&line, steps](const Step& step) {
    ++*steps;
    if (!line.json && !line.csv) return Print(TableLine(step));
    const auto row = RowOf(line.plan, step, *steps);
    Print(line.json ? ToJsonLine(row) : ToCsvLine(row));
  };
  if (line.csv) Print(CsvHeader());
  if (!line.json && !line.csv) Print(TableHead(line.plan));
  return events;
}

// A rate that the search rejected may have had no answer: that is what it is for.
bool IsGood(const RunResult& run) {
  int64_t answered = 0;
  for (const Step& step : run.steps) {
    if (step.result.wrong > 0 || step.result.lost > 0) return false;
    answered += step.result.answered;
  }
  return answered > 0;
}

absl::StatusOr<Clients> Connect(const CommandLine& line) {
  Clients clients;
  for (int64_t i = 0; i < line.plan.connections; ++i) {
    auto client = Client::Connect(line.server, line.client);
    if (!client.ok()) return client.status();
    clients.push_back(*std::move(client));
  }
  return clients;
}

int Main(const std::vector<std::string>& words) {
  if (!words.empty() && (words[0] == "--help" || words[0] == "help" || words[0] == "-h")) {
    return Usage(stdout);
  }
  const absl::StatusOr<CommandLine> line = ReadCommandLine(words);
  if (!line.ok()) {
    std::fprintf(stderr, "attnload: %s\n", std::string(line.status().message()).c_str());
    return Usage(stderr);
  }
  const absl::StatusOr<Clients> clients = Connect(*line);
  if (!clients.ok()) return Fail(clients.status(), line->server, kUsage);
  if (absl::Status health = clients->front()->CheckHealth(absl::Seconds(5)); !health.ok()) {
    return Fail(health, line->server, kFailed);
  }
  std::signal(SIGINT, [](int) { stopped = true; });
  std::signal(SIGTERM, [](int) { stopped = true; });
  size_t steps = 0;
  const auto run = RunPlan(line->plan, *clients, stopped, Show(*line, &steps));
  if (!run.ok()) return Fail(run.status(), line->server, kFailed);
  if (!line->json && !line->csv) Print(SloText(line->plan, *run));
  if (!line->html.empty()) {
    const absl::Status written = WriteTextFile(line->html, ToPage(line->server, line->plan, *run));
    if (!written.ok()) return Fail(written, line->server, kFailed);
  }
  return IsGood(*run) ? kOk : kFailed;
}

}  // namespace
}  // namespace attnd::tools

int main(int argc, char** argv) {
  attnd::tools::TuneProcess();
  return attnd::tools::Main({argv + 1, argv + argc});
}
