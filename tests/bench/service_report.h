// What service_bench has measured, for people and for programs.
#ifndef ATTND_TESTS_BENCH_SERVICE_REPORT_H_
#define ATTND_TESTS_BENCH_SERVICE_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"

namespace attnd::bench {

// A transport at one size. README.md says how each number comes about.
struct TransportRow {
  std::string transport;
  int64_t bytes = 0;  // each way
  double median_us = 0;
  double run_us = 0;  // of which the kernel, by the server's account; 0: it has none
  double gb_per_s = 0;
  double ratio_to_proto_echo = 0;
  double ratio_to_raw_echo = 0;
  double ratio_to_socket = 0;
  double ratio_to_memcpy = 0;
  absl::optional<double> server_peak_rss_over_payload;  // of servers whose memory was looked at
};

struct SmallRow {
  int in_flight = 0;
  double calls_per_s = 0;
  double echo_calls_per_s = 0;
};

struct BesideRow {
  int64_t bulk_bytes = 0;
  double alone_p50_us = 0;
  double two_channels_p50_us = 0;
  double one_channel_p50_us = 0;
};

struct ServiceReport {
  int rounds = 0;
  int min_time_ms = 0;
  std::vector<TransportRow> transports;
  std::vector<SmallRow> small_calls;
  std::vector<BesideRow> beside_bulk;
};

// Machine and date in lines that begin with "# ", then a table of each kind of row.
std::string ToTable(const ServiceReport& report);
// An object with the arrays transports, small_calls and beside_bulk.
std::string ToJson(const ServiceReport& report);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_SERVICE_REPORT_H_
