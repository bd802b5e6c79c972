#include "tests/service/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/service/harness.h"

namespace attnd::testing {

AttndProcess::AttndProcess(const std::vector<std::string>& flags) {
  std::string pattern = ::testing::TempDir() + "/attnd_process_XXXXXX";
  directory_ = mkdtemp(pattern.data());
  std::vector<std::string> words = {ATTND_PROGRAM, "--listen=127.0.0.1:0",
                                    "--http_listen=127.0.0.1:0", "--local_socket=none",
                                    "--port_file=" + directory_ + "/ports"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string output = directory_ + "/output";
  pid_ = fork();
  if (pid_ == 0) {
    const int fd = open(output.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
}

AttndProcess::~AttndProcess() {
  if (!HasExited()) {
    Signal(SIGKILL);
    WaitForExit();
  }
  std::filesystem::remove_all(directory_);
}

bool AttndProcess::WaitUntilReady() {
  const std::string ports = directory_ + "/ports";
  EXPECT_TRUE(Eventually([&] { return HasExited() || std::filesystem::exists(ports); }));
  std::ifstream file(ports);
  return static_cast<bool>(file >> port_ >> http_port_);
}

std::string AttndProcess::address() const { return absl::StrCat("127.0.0.1:", port_); }

void AttndProcess::Signal(int signal) const { kill(pid_, signal); }

bool AttndProcess::HasExited() {
  if (!exited_) exited_ = waitpid(pid_, &wait_status_, WNOHANG) == pid_;
  return exited_;
}

ExitedProcess AttndProcess::WaitForExit() {
  EXPECT_TRUE(Eventually([&] { return HasExited(); }));
  ExitedProcess exited;
  exited.exit_status =
      WIFEXITED(wait_status_) ? WEXITSTATUS(wait_status_) : 128 + WTERMSIG(wait_status_);
  std::ostringstream output;
  output << std::ifstream(directory_ + "/output").rdbuf();
  exited.output = output.str();
  return exited;
}

int64_t AttndProcess::StatusBytes(const std::string& field) const {
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == field && status >> kib) return kib << 10;
  }
  return -1;
}

ExitedProcess RunAttnd(const std::vector<std::string>& flags) {
  AttndProcess process(flags);
  return process.WaitForExit();
}

}  // namespace attnd::testing
