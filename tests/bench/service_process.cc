#include "tests/bench/service_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::bench {
namespace {

constexpr std::chrono::seconds kStartTimeout(30);

std::string SideSocket(const std::string& directory) { return directory + "/side.sock"; }

std::vector<std::string> ServerCommand(Peer peer, const std::string& devices,
                                       const std::string& directory, const std::string& port_file) {
  const std::string echo = ProgramDirectory() + "/echo_bench_server";
  if (peer == Peer::kRawEcho) return {echo, port_file, "raw"};
  if (peer != Peer::kAttnd) return {echo, port_file};
  // 256 MB of Q and its header are a little more than the default limit.
  return {ProgramDirectory() + "/attnd",
          "--listen=127.0.0.1:0",
          "--http_listen=",
          absl::StrCat("--port_file=", port_file),
          absl::StrCat("--local_socket=", SideSocket(directory)),
          "--log_level=error",
          absl::StrCat("--devices=", devices),
          absl::StrCat("--max_unary_bytes=", int64_t{260} << 20)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(std::vector<std::string> argv) {
  std::vector<char*> words;
  for (std::string& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0) return absl::InternalError("no pipe is left");
  if (pipe2(out, O_CLOEXEC) != 0) {
    close(in[0]);
    close(in[1]);
    return absl::InternalError("no pipe is left");
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // A bench that is killed leaves nothing running.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execv(words[0], words.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  std::unique_ptr<ChildProcess> child(
      new ChildProcess(pid, fdopen(in[1], "w"), fdopen(out[0], "r")));
  if (pid < 0) return absl::InternalError("no process is left");
  return child;
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0 && !HasExited()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::fclose(to_);
  std::fclose(from_);
}

absl::StatusOr<std::string> ChildProcess::Ask(const std::string& line) {
  std::string answer;
  std::fprintf(to_, "%s\n", line.c_str());
  std::fflush(to_);
  for (int c = std::fgetc(from_); c != '\n'; c = std::fgetc(from_)) {
    if (c == EOF) {
      return absl::UnavailableError(absl::StrCat("a process ended when asked: ", line));
    }
    answer.push_back(static_cast<char>(c));
  }
  return answer;
}

bool ChildProcess::HasExited() {
  if (!exited_) exited_ = waitpid(pid_, nullptr, WNOHANG) == pid_;
  return exited_;
}

int64_t ChildProcess::StatusBytes(const std::string& field) const {
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == field && status >> kib) return kib << 10;
  }
  return 0;
}

std::string ProgramDirectory() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(Peer peer,
                                                                    const std::string& devices) {
  std::string pattern = (std::filesystem::temp_directory_path() / "service_bench_XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat(pattern, ": cannot be made"));
  }
  std::unique_ptr<ServerProcess> server(new ServerProcess(pattern));
  const std::string port_file = pattern + "/ports";
  auto process = ChildProcess::Start(ServerCommand(peer, devices, pattern, port_file));
  if (!process.ok()) return process.status();
  server->process_ = *std::move(process);
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  while (!std::filesystem::exists(port_file)) {
    if (server->process_->HasExited()) return absl::UnavailableError("a server did not start");
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError("a server was not ready within 30 s");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::ifstream ports(port_file);
  for (int port = 0; ports >> port;) server->ports_.push_back(port);
  return server;
}

ServerProcess::~ServerProcess() {
  process_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::string ServerProcess::Address(Peer peer) const {
  // The echo server's lines: synchronous, callback, socket.
  const size_t line = peer == Peer::kCallbackEcho ? 1 : peer == Peer::kSocket ? 2 : 0;
  const std::string address = absl::StrCat("127.0.0.1:", ports_.at(line));
  return peer == Peer::kAttnd ? absl::StrCat(address, ",", SideSocket(directory_)) : address;
}

}  // namespace attnd::bench
