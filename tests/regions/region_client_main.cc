// A client for tests to kill: registers a region, writes its handle to standard output, and stays
// until standard input ends or it is killed.
//
//   region_client SOCKET_PATH INSTANCE_ID SIZE_BYTES
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "client/region.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: region_client SOCKET_PATH INSTANCE_ID SIZE_BYTES\n");
    return 2;
  }
  attnd::LocalRegionOptions options;
  options.socket_path = argv[1];
  options.instance_id = argv[2];
  options.size_bytes = std::strtoll(argv[3], nullptr, 10);
  const auto region = attnd::LocalRegion::Create(options);
  if (!region.ok()) {
    std::fprintf(stderr, "%s\n", region.status().ToString().c_str());
    return 1;
  }
  (*region)->bytes()[0] = 77;
  const auto& handle = (*region)->handle();
  if (write(STDOUT_FILENO, handle.data(), handle.size()) != static_cast<ssize_t>(handle.size())) {
    return 1;
  }
  char byte;
  return read(STDIN_FILENO, &byte, 1) == 0 ? 0 : 1;
}
