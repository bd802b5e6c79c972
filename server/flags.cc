#include "server/flags.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace {

const attnd::server::ServerOptions& Defaults() {
  static const attnd::server::ServerOptions defaults;
  return defaults;
}

}  // namespace

ABSL_FLAG(std::string, listen, Defaults().listen,
          "Where gRPC is served: host:port, [ipv6]:port or unix:/path. Port 0: any free one, which "
          "is logged, and written to --port_file.");
ABSL_FLAG(std::string, http_listen, Defaults().http_listen,
          "Where /metrics, /livez and /readyz are served: host:port; port 0 as in --listen. Empty: "
          "nowhere.");
ABSL_FLAG(bool, insecure_listen, Defaults().insecure_listen,
          "Allows addresses beyond loopback in --listen and --http_listen, where anybody who "
          "reaches them may call, in clear text.");
ABSL_FLAG(std::string, port_file, "",
          "File to write once the server is ready: the port of gRPC in the first line (0 on a Unix "
          "socket), that of HTTP in the second (0: off). Empty: none.");
ABSL_FLAG(
    std::string, backend, Defaults().backend,
    "Backend that computes, by name. Empty: the environment's ATTND_BACKEND, or the best that "
    "this machine can run.");
ABSL_FLAG(
    std::string, devices, Defaults().devices,
    "Devices that compute: auto, every GPU where there is one, else the CPU; or a list, such as "
    "cuda:0,cuda:1 or cpu. GPUs are counted as CUDA_VISIBLE_DEVICES has them.");
ABSL_FLAG(int32_t, threads, Defaults().threads,
          "Threads of a CPU backend. 0: one per processor that this process may use. Negative: "
          "refused.");
ABSL_FLAG(int32_t, io_threads, Defaults().io_threads,
          "Threads that serve connections, and calls that are short. 0: one a processor, 4 to 8. "
          "Negative: refused.");
ABSL_FLAG(
    int64_t, busy_poll_us, Defaults().busy_poll_us,
    "For so long, in microseconds, such a thread, that of the side socket's calls and that of a "
    "GPU look for more before they "
    "sleep, keeping a processor busy: an answer comes up to 200 us earlier. 0: not at all. "
    "-1: 5000 where there is a GPU and four processors or more, else 0.");
ABSL_FLAG(int64_t, max_queue_requests, Defaults().scheduler.max_queue_requests,
          "Requests that may wait for a device; more are refused. 0 and negative: refused.");
ABSL_FLAG(
    int64_t, max_queue_bytes, Defaults().scheduler.max_queue_bytes,
    "Payload and answer bytes of the requests that may wait for a device; more are refused. 0: as "
    "much as --arena_bytes. Negative: refused.");
ABSL_FLAG(int64_t, max_batch_problems, Defaults().scheduler.max_batch_problems,
          "Requests that run together at most. 0 and negative: refused.");
ABSL_FLAG(int64_t, max_batch_bytes, Defaults().scheduler.max_batch_bytes,
          "Payload and answer bytes that run together at most; a larger request runs alone. 0 and "
          "negative: refused.");
ABSL_FLAG(int64_t, max_batch_delay_us, Defaults().scheduler.max_batch_delay_us,
          "How long a request may wait for others to run with, in microseconds. 0: not at all. "
          "Negative: refused.");
ABSL_FLAG(
    int64_t, max_slice_us, Defaults().scheduler.max_slice_us,
    "Device time that a new request waits at most for others that run, as predicted, in "
    "microseconds: a batch takes a quarter of it, and a longer request runs alone. 0: no bound. "
    "Negative: refused.");
ABSL_FLAG(
    int64_t, max_queue_ms, Defaults().scheduler.max_queue_ms,
    "How long a request may wait and run, as predicted from what runs and waits before it, in "
    "milliseconds; one that could take longer is refused. 0: no bound. Negative: refused.");
ABSL_FLAG(
    std::string, tenants, Defaults().tenants,
    "File of those who share the devices: a line for each, name weight=N max_queue_requests=N "
    "max_queue_bytes=N (all but the name may be missing). A name is an IP address, unix, or what "
    "--tenant_metadata brings; other callers are of the tenant default. Read again at SIGHUP; a "
    "file that is wrong then changes nothing. Empty: all callers are of that tenant.");
ABSL_FLAG(std::string, tenant_metadata, Defaults().tenant_metadata,
          "Metadata that names a call's tenant, such as attnd-tenant. Only where all callers come "
          "through a proxy that sets it and lets none of theirs pass. Empty: no metadata counts.");
ABSL_FLAG(int64_t, receive_bytes, Defaults().receive_bytes,
          "Bytes of requests being received; calls beyond wait unread. A call counts as what its "
          "metadata attnd-request-bytes says, or as --max_unary_bytes. At least --max_unary_bytes; "
          "0 and negative: refused.");
ABSL_FLAG(
    int64_t, max_unary_bytes, Defaults().max_unary_bytes,
    "Size of a request at most, in bytes, below 2147483648; larger ones are refused unread. 0 "
    "and negative: refused.");
ABSL_FLAG(
    int64_t, max_stream_bytes, Defaults().max_stream_bytes,
    "Payload of a stream at most, in bytes; larger ones are refused at their header. 0: 3 GiB, 6 "
    "GiB with a GPU. Never more than --arena_bytes (or --pinned_bytes) holds: 4 ninths of it. "
    "Negative: refused.");
ABSL_FLAG(
    int64_t, arena_bytes, Defaults().arena_bytes,
    "Memory of decoded payloads (one half) and of answers (the other); requests wait for it. "
    "At least 3 times --max_unary_bytes. 0: what the largest stream needs (7 GiB, 14 GiB with "
    "a GPU), but at most half of the machine's or the control group's memory. Negative: "
    "refused.");
ABSL_FLAG(
    int64_t, pinned_bytes, Defaults().pinned_bytes,
    "Where there is a GPU: pinned memory of payloads and answers, in place of --arena_bytes. At "
    "least 3 times --max_unary_bytes; 0: as much as --arena_bytes. Negative: refused.");
ABSL_FLAG(
    int64_t, device_bytes, Defaults().device_bytes,
    "Memory of each GPU for requests; they wait for it. 0: four fifths of what is free at the "
    "start. Negative: refused.");
ABSL_FLAG(
    std::string, local_socket, Defaults().local_socket,
    "Path of the side socket, where callers of this user on this host hand in memory that is "
    "then used in place. Empty: attnd.sock in $XDG_RUNTIME_DIR, else in /run/user/<uid>, else "
    "in /tmp/attnd-<uid>; if another server has it, there is none. none: there is none.");
ABSL_FLAG(int64_t, max_region_bytes, Defaults().max_region_bytes,
          "Memory of callers that may be handed in at a time, in bytes; more is refused. It is the "
          "callers' own, mapped here. 0: no side socket. Negative: refused.");
ABSL_FLAG(
    bool, allow_cuda_ipc, Defaults().allow_cuda_ipc,
    "Lets callers at the side socket hand in memory on this server's GPUs too (CUDA IPC), which "
    "kernels read and write in place. Such callers are trusted: one that frees its memory while "
    "a call uses it may take the GPU, and so the server, down.");
ABSL_FLAG(
    bool, allow_shm_names, Defaults().allow_shm_names,
    "Lets callers of the Open Inference Protocol on this host (127.0.0.1, [::1] or a Unix socket) "
    "register POSIX shared memory objects of their own user by name, and have tensors read from "
    "and written to them.");
ABSL_FLAG(
    std::string, shm_name_prefix, Defaults().shm_name_prefix,
    "How the names of such objects must begin, without their leading slash. Empty: any may be "
    "registered that is the caller's own.");
ABSL_FLAG(int64_t, max_shm_names, Defaults().max_shm_names,
          "Registrations of such objects at a time, and --max_region_bytes their bytes; more are "
          "refused. One caller may have half of either. 0 and negative: refused.");
ABSL_FLAG(int64_t, drain_delay_ms, Defaults().drain_delay_ms,
          "After SIGTERM or SIGINT: how long calls are still accepted while health says "
          "NOT_SERVING, in milliseconds. 0: not at all. Negative: refused.");
ABSL_FLAG(
    int64_t, drain_timeout_ms, Defaults().drain_timeout_ms,
    "After the delay: how long the calls inside may take to end, in milliseconds. 0: they are "
    "cut off at once. Negative: refused.");
ABSL_FLAG(int64_t, default_deadline_ms, Defaults().default_deadline_ms,
          "Deadline of calls that bring none or a later one, in milliseconds. 0: none. Negative: "
          "refused.");
ABSL_FLAG(std::string, log_level, "info", "What is logged: debug, info, warning, error or off.");
ABSL_FLAG(bool, probe, false,
          "Starts no server, but asks the one at --listen for its health: exit status 0 if it is "
          "serving, 1 otherwise.");

namespace attnd::server {
namespace {

bool parsing = false;
bool asked_for_help = false;

// abseil ends the process with 1 for --help and for flags that it cannot read alike.
void CorrectExitStatus(int status, void*) {
  if (!parsing || status == 0) return;
  std::fflush(nullptr);
  _exit(asked_for_help ? 0 : kBadFlagsExit);
}

std::vector<char*> ParseFlags(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "computes exact attention for whoever calls it over gRPC.\n\nUsage: attnd [flags]");
  absl::FlagsUsageConfig usage;
  usage.version_string = [] { return std::string("attnd " ATTND_VERSION "\n"); };
  const auto is_ours = [](absl::string_view file) {
    return absl::string_view(__FILE__).find(file) != absl::string_view::npos ||
           file.find("server/flags.cc") != absl::string_view::npos;
  };
  usage.contains_help_flags = is_ours;
  usage.contains_helpshort_flags = is_ours;
  absl::SetFlagsUsageConfig(std::move(usage));
  for (int i = 1; i < argc; ++i) {
    const absl::string_view flag(argv[i]);
    asked_for_help |= flag.substr(0, 6) == "--help" || flag.substr(0, 5) == "-help";
  }
  on_exit(&CorrectExitStatus, nullptr);
  parsing = true;
  std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  parsing = false;
  return rest;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(int argc, char** argv) {
  const std::vector<char*> rest = ParseFlags(argc, argv);
  if (rest.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("\"", rest[1], "\": attnd takes flags only"));
  }
  CommandLine line;
  line.port_file = absl::GetFlag(FLAGS_port_file);
  line.log_level = absl::GetFlag(FLAGS_log_level);
  line.probe = absl::GetFlag(FLAGS_probe);
  ServerOptions& server = line.server;
  server.listen = absl::GetFlag(FLAGS_listen);
  server.http_listen = absl::GetFlag(FLAGS_http_listen);
  server.insecure_listen = absl::GetFlag(FLAGS_insecure_listen);
  server.devices = absl::GetFlag(FLAGS_devices);
  server.backend = absl::GetFlag(FLAGS_backend);
  server.threads = absl::GetFlag(FLAGS_threads);
  server.io_threads = absl::GetFlag(FLAGS_io_threads);
  server.busy_poll_us = absl::GetFlag(FLAGS_busy_poll_us);
  server.scheduler.max_queue_requests = absl::GetFlag(FLAGS_max_queue_requests);
  server.scheduler.max_queue_bytes = absl::GetFlag(FLAGS_max_queue_bytes);
  server.scheduler.max_batch_problems = absl::GetFlag(FLAGS_max_batch_problems);
  server.scheduler.max_batch_bytes = absl::GetFlag(FLAGS_max_batch_bytes);
  server.scheduler.max_batch_delay_us = absl::GetFlag(FLAGS_max_batch_delay_us);
  server.scheduler.max_slice_us = absl::GetFlag(FLAGS_max_slice_us);
  server.scheduler.max_queue_ms = absl::GetFlag(FLAGS_max_queue_ms);
  server.tenants = absl::GetFlag(FLAGS_tenants);
  server.tenant_metadata = absl::GetFlag(FLAGS_tenant_metadata);
  server.receive_bytes = absl::GetFlag(FLAGS_receive_bytes);
  server.max_unary_bytes = absl::GetFlag(FLAGS_max_unary_bytes);
  server.max_stream_bytes = absl::GetFlag(FLAGS_max_stream_bytes);
  server.arena_bytes = absl::GetFlag(FLAGS_arena_bytes);
  server.pinned_bytes = absl::GetFlag(FLAGS_pinned_bytes);
  server.device_bytes = absl::GetFlag(FLAGS_device_bytes);
  server.local_socket = absl::GetFlag(FLAGS_local_socket);
  server.max_region_bytes = absl::GetFlag(FLAGS_max_region_bytes);
  server.allow_cuda_ipc = absl::GetFlag(FLAGS_allow_cuda_ipc);
  server.allow_shm_names = absl::GetFlag(FLAGS_allow_shm_names);
  server.shm_name_prefix = absl::GetFlag(FLAGS_shm_name_prefix);
  server.max_shm_names = absl::GetFlag(FLAGS_max_shm_names);
  server.drain_delay_ms = absl::GetFlag(FLAGS_drain_delay_ms);
  server.drain_timeout_ms = absl::GetFlag(FLAGS_drain_timeout_ms);
  server.default_deadline_ms = absl::GetFlag(FLAGS_default_deadline_ms);
  // A probe goes where a server listens, whether that was wise or not.
  server.insecure_listen |= line.probe;
  if (absl::Status status = Validate(server); !status.ok()) return status;
  return line;
}

}  // namespace attnd::server
