// service_bench: what attnd's transports carry, beside what they are to be judged by. See
// README.md.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/bench/service_client.h"
#include "tests/bench/service_process.h"
#include "tests/bench/service_report.h"
#include "tests/bench/service_transport.h"

ABSL_FLAG(bool, quick, false, "Fewer sizes and rounds: within 40 s on two cores.");
ABSL_FLAG(bool, json, false, "Prints a JSON object instead of tables.");
ABSL_FLAG(std::vector<std::string>, sizes_bytes, {},
          "Bytes each way, separated by commas; multiples of 4096. Default: 64 KB to 256 MB, with "
          "--quick 1, 16 and 64 MB.");
ABSL_FLAG(bool, small, true,
          "Times small calls too: alone, in flight together, beside large ones.");
ABSL_FLAG(std::string, devices, "cpu",
          "attnd's --devices: a GPU adds its bus and launches to every call.");
ABSL_FLAG(std::string, client, "", "For the bench's own use: be the client of this transport, ...");
ABSL_FLAG(std::string, address, "", "... which calls this server.");

namespace attnd::bench {
namespace {

// Calls until a server's memory has been through all that it will be through.
constexpr int kRssCalls = 6;

struct Effort {
  std::vector<int64_t> sizes_bytes;
  int rounds;
  int min_time_ms;  // of a transport in a round
  int small_time_ms;
  int64_t bulk_bytes;  // beside which small calls are timed
};

absl::StatusOr<Effort> EffortOfFlags() {
  constexpr int64_t kMb = 1 << 20;
  Effort effort =
      absl::GetFlag(FLAGS_quick)
          ? Effort{{kMb, 16 * kMb, 64 * kMb}, 3, 100, 500, 64 * kMb}
          : Effort{{kMb / 16, kMb, 16 * kMb, 64 * kMb, 256 * kMb}, 7, 300, 2000, 256 * kMb};
  const std::vector<std::string> chosen = absl::GetFlag(FLAGS_sizes_bytes);
  if (!chosen.empty()) effort.sizes_bytes.clear();
  for (const std::string& text : chosen) {
    int64_t bytes = 0;
    if (!absl::SimpleAtoi(text, &bytes) || bytes < 4096 || bytes % 4096 != 0 || bytes > 256 * kMb) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--sizes_bytes has \"", text, "\"; it must be multiples of 4096 up to ", 256 * kMb));
    }
    effort.sizes_bytes.push_back(bytes);
  }
  return effort;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

absl::StatusOr<std::unique_ptr<ServerProcess>> StartServer(Peer peer) {
  return ServerProcess::Start(peer, absl::GetFlag(FLAGS_devices));
}

// The servers of one run, and a client process of each transport.
struct Stage {
  std::unique_ptr<ServerProcess> attnd;
  std::unique_ptr<ServerProcess> echo;
  std::unique_ptr<ServerProcess> raw_echo;
  std::map<std::string, std::unique_ptr<ClientProcess>> clients;

  static absl::StatusOr<Stage> SetUp() {
    auto attnd = StartServer(Peer::kAttnd);
    if (!attnd.ok()) return attnd.status();
    auto echo = StartServer(Peer::kSyncEcho);
    if (!echo.ok()) return echo.status();
    auto raw_echo = StartServer(Peer::kRawEcho);
    if (!raw_echo.ok()) return raw_echo.status();
    Stage stage{*std::move(attnd), *std::move(echo), *std::move(raw_echo), {}};
    for (const TransportEntry& entry : Transports()) {
      const ServerProcess& server = entry.peer == Peer::kAttnd     ? *stage.attnd
                                    : entry.peer == Peer::kRawEcho ? *stage.raw_echo
                                                                   : *stage.echo;
      auto client = ClientProcess::Start(entry, server.Address(entry.peer));
      if (!client.ok()) return client.status();
      stage.clients[entry.name] = *std::move(client);
    }
    return stage;
  }
};

// What calls of this size add to a server that has seen none, at its peak, over request + response.
absl::StatusOr<double> PeakRssOverPayload(const TransportEntry& entry, int64_t bytes) {
  const auto server = StartServer(entry.peer);
  if (!server.ok()) return server.status();
  const auto client = ClientProcess::Start(entry, (*server)->Address(entry.peer));
  if (!client.ok()) return client.status();
  // The first connection and thread stacks are no payload's.
  auto status = (*client)->Time(kSmallBytes, 0).status();
  if (!status.ok()) return status;
  const int64_t before_bytes = (*server)->process().StatusBytes("VmRSS:");
  for (int call = 0; call < kRssCalls; ++call) {
    status = (*client)->Time(bytes, 0).status();
    if (!status.ok()) return status;
  }
  const int64_t peak_bytes = (*server)->process().StatusBytes("VmHWM:");
  return static_cast<double>(peak_bytes - before_bytes) / static_cast<double>(2 * bytes);
}

absl::StatusOr<std::vector<TransportRow>> MeasureSize(Stage& stage, int64_t bytes,
                                                      const Effort& effort) {
  std::map<std::string, ClientProcess::Times> times;
  // A round more than counts, the first: memory of this size is touched for the first time.
  for (int round = -1; round < effort.rounds; ++round) {
    for (const TransportEntry& entry : Transports()) {
      if (!entry.has_row) continue;
      const auto timed = stage.clients[entry.name]->Time(bytes, effort.min_time_ms);
      if (!timed.ok()) return timed.status();
      if (round < 0) continue;
      ClientProcess::Times& all = times[entry.name];
      all.run_us = timed->run_us;
      all.call_us.push_back(Median(timed->call_us));
    }
  }
  std::vector<TransportRow> rows;
  for (const TransportEntry& entry : Transports()) {
    if (!entry.has_row) continue;
    TransportRow row;
    row.transport = entry.name;
    row.bytes = bytes;
    row.median_us = Median(times[entry.name].call_us);
    row.run_us = times[entry.name].run_us;
    row.gb_per_s = 2e-3 * static_cast<double>(bytes) / row.median_us;
    const auto ratio_to = [&](const char* other) {
      return Median(times[other].call_us) / row.median_us;
    };
    row.ratio_to_proto_echo = ratio_to("proto_echo");
    row.ratio_to_raw_echo = ratio_to("raw_echo");
    row.ratio_to_socket = ratio_to("socket");
    row.ratio_to_memcpy = ratio_to("memcpy");
    if (entry.peer == Peer::kAttnd || entry.peer == Peer::kSyncEcho) {
      const auto peak = PeakRssOverPayload(entry, bytes);
      if (!peak.ok()) return peak.status();
      row.server_peak_rss_over_payload = *peak;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::Status MeasureSmall(Stage& stage, const Effort& effort, ServiceReport* report) {
  constexpr const char* kSmallTransport = "unary";
  for (const int in_flight : {1, 8, 64}) {
    std::vector<double> rates;
    std::vector<double> echo_rates;
    for (int round = 0; round < 3; ++round) {
      const auto rate =
          stage.clients[kSmallTransport]->SmallCallsPerS(in_flight, effort.small_time_ms / 2);
      if (!rate.ok()) return rate.status();
      const auto echo =
          stage.clients["callback_echo"]->SmallCallsPerS(in_flight, effort.small_time_ms / 2);
      if (!echo.ok()) return echo.status();
      rates.push_back(*rate);
      echo_rates.push_back(*echo);
    }
    report->small_calls.push_back({in_flight, Median(rates), Median(echo_rates)});
  }
  BesideRow row;
  row.bulk_bytes = effort.bulk_bytes;
  const struct {
    int64_t bulk_bytes;
    bool one_channel;
    double* p50_us;
  } runs[] = {{0, false, &row.alone_p50_us},
              {effort.bulk_bytes, false, &row.two_channels_p50_us},
              {effort.bulk_bytes, true, &row.one_channel_p50_us}};
  for (const auto& run : runs) {
    const auto us = stage.clients[kSmallTransport]->SmallBesideBulk(run.bulk_bytes, run.one_channel,
                                                                    2 * effort.small_time_ms);
    if (!us.ok()) return us.status();
    *run.p50_us = *us;
  }
  report->beside_bulk.push_back(row);
  return absl::OkStatus();
}

absl::Status Bench() {
  std::signal(SIGPIPE, SIG_IGN);  // a child that has ended is told by its answers
  const auto effort = EffortOfFlags();
  if (!effort.ok()) return effort.status();
  auto stage = Stage::SetUp();
  if (!stage.ok()) return stage.status();
  ServiceReport report;
  report.rounds = effort->rounds;
  report.min_time_ms = effort->min_time_ms;
  for (const int64_t bytes : effort->sizes_bytes) {
    const auto rows = MeasureSize(*stage, bytes, *effort);
    if (!rows.ok()) return rows.status();
    report.transports.insert(report.transports.end(), rows->begin(), rows->end());
  }
  if (absl::GetFlag(FLAGS_small)) {
    if (absl::Status status = MeasureSmall(*stage, *effort, &report); !status.ok()) return status;
  }
  std::fputs((absl::GetFlag(FLAGS_json) ? ToJson(report) : ToTable(report)).c_str(), stdout);
  return absl::OkStatus();
}

int Main() {
  const std::string client = absl::GetFlag(FLAGS_client);
  if (client.empty()) {
    const absl::Status status = Bench();
    if (status.ok()) return 0;
    std::fprintf(stderr, "service_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  const TransportEntry* const entry = FindTransport(client);
  if (entry != nullptr) return RunClient(*entry, absl::GetFlag(FLAGS_address));
  std::fprintf(stderr, "service_bench: no transport is named \"%s\"\n", client.c_str());
  return 1;
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Times attnd's transports beside a protobuf echo, a socket, memcpy.");
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  if (arguments.size() > 1) {
    std::fprintf(stderr, "service_bench: unexpected argument \"%s\"\n", arguments[1]);
    return 1;
  }
  return attnd::bench::Main();
}
