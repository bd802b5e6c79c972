#include "tests/bench/service_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "tests/bench/report.h"

namespace attnd::bench {

std::string ToTable(const ServiceReport& report) {
  std::string table = absl::StrFormat(
      "%s# medians of %d rounds of at least %d ms, transports alternating; server and client "
      "are processes on one machine\n"
      "%-13s %10s %11s %10s %9s %11s %9s %8s %8s %12s\n",
      Machine(), report.rounds, report.min_time_ms, "transport", "bytes", "median_us", "run_us",
      "gb_per_s", "/proto_echo", "/raw_echo", "/socket", "/memcpy", "rss/payload");
  for (const TransportRow& row : report.transports) {
    absl::StrAppendFormat(&table, "%-13s %10d %11.1f %10.1f %9.3f %11.2f %9.2f %8.2f %8.3f",
                          row.transport, row.bytes, row.median_us, row.run_us, row.gb_per_s,
                          row.ratio_to_proto_echo, row.ratio_to_raw_echo, row.ratio_to_socket,
                          row.ratio_to_memcpy);
    if (row.server_peak_rss_over_payload) {
      absl::StrAppendFormat(&table, " %12.2f", *row.server_peak_rss_over_payload);
    }
    table += "\n";
  }
  if (report.small_calls.empty()) return table;
  absl::StrAppendFormat(&table, "\n%-10s %14s %17s %15s\n", "in_flight", "calls_per_s",
                        "echo_calls_per_s", "/callback_echo");
  for (const SmallRow& row : report.small_calls) {
    absl::StrAppendFormat(&table, "%-10d %14.0f %17.0f %15.2f\n", row.in_flight, row.calls_per_s,
                          row.echo_calls_per_s, row.calls_per_s / row.echo_calls_per_s);
  }
  absl::StrAppendFormat(&table, "\n%-11s %13s %20s %19s\n", "bulk_bytes", "alone_p50_us",
                        "two_channels_p50_us", "one_channel_p50_us");
  for (const BesideRow& row : report.beside_bulk) {
    absl::StrAppendFormat(&table, "%-11d %13.0f %20.0f %19.0f\n", row.bulk_bytes, row.alone_p50_us,
                          row.two_channels_p50_us, row.one_channel_p50_us);
  }
  return table;
}

std::string ToJson(const ServiceReport& report) {
  nlohmann::ordered_json json = {{"rounds", report.rounds}, {"min_time_ms", report.min_time_ms}};
  auto& transports = json["transports"] = nlohmann::ordered_json::array();
  for (const TransportRow& row : report.transports) {
    transports.push_back({{"transport", row.transport},
                          {"bytes", row.bytes},
                          {"median_us", row.median_us},
                          {"run_us", row.run_us},
                          {"gb_per_s", row.gb_per_s},
                          {"ratio_to_proto_echo", row.ratio_to_proto_echo},
                          {"ratio_to_raw_echo", row.ratio_to_raw_echo},
                          {"ratio_to_socket", row.ratio_to_socket},
                          {"ratio_to_memcpy", row.ratio_to_memcpy},
                          {"server_peak_rss_over_payload", nullptr}});
    if (row.server_peak_rss_over_payload) {
      transports.back()["server_peak_rss_over_payload"] = *row.server_peak_rss_over_payload;
    }
  }
  auto& small_calls = json["small_calls"] = nlohmann::ordered_json::array();
  for (const SmallRow& row : report.small_calls) {
    small_calls.push_back({{"in_flight", row.in_flight},
                           {"calls_per_s", row.calls_per_s},
                           {"echo_calls_per_s", row.echo_calls_per_s},
                           {"ratio_to_callback_echo", row.calls_per_s / row.echo_calls_per_s}});
  }
  auto& beside = json["beside_bulk"] = nlohmann::ordered_json::array();
  for (const BesideRow& row : report.beside_bulk) {
    beside.push_back({{"bulk_bytes", row.bulk_bytes},
                      {"alone_p50_us", row.alone_p50_us},
                      {"two_channels_p50_us", row.two_channels_p50_us},
                      {"one_channel_p50_us", row.one_channel_p50_us}});
  }
  return json.dump(2) + "\n";
}

}  // namespace attnd::bench
