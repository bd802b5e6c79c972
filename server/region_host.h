// The server's side for callers on its own host: the table of their memory regions, and the socket
// where they hand them in.
#ifndef ATTND_SERVER_REGION_HOST_H_
#define ATTND_SERVER_REGION_HOST_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/executor/device.h"
#include "server/metrics/metrics.h"
#include "server/options.h"
#include "server/regions/region_socket.h"
#include "server/regions/region_table.h"
#include "server/regions/shm_host.h"
#include "server/services/local_calls.h"

namespace attnd::server {

// Thread-safe, but for construction and destruction.
class RegionHost {
 public:
  // Null: the options want none, or the default path cannot be had, which is logged, as is
  // --allow_cuda_ipc where none of the devices is a GPU that can. Fails as RegionSocket::Listen for
  // a path that was given. `take_calls` as RegionSocketOptions has it.
  static absl::StatusOr<std::unique_ptr<RegionHost>> Start(
      const ServerOptions& options, const std::string& instance_id,
      const std::vector<std::unique_ptr<Device>>& devices,
      std::function<absl::Status(regions::UniqueFd)> take_calls);

  RegionTable& table() { return *table_; }
  bool takes_cuda_memory() const { return takes_cuda_memory_; }
  // New callers find no socket from here on.
  void RemovePath() const { socket_->RemovePath(); }
  // Its own, and those of calls over the socket. Until RemoveGauges().
  void AddMetrics(const LocalCalls& calls, Metrics& metrics) const;

 private:
  RegionHost(std::shared_ptr<RegionTable> table, std::unique_ptr<RegionSocket> socket,
             bool takes_cuda_memory)
      : table_(std::move(table)),
        socket_(std::move(socket)),
        takes_cuda_memory_(takes_cuda_memory) {}

  const std::shared_ptr<RegionTable> table_;
  const std::unique_ptr<RegionSocket> socket_;
  const bool takes_cuda_memory_;
};

// Shared memory by name; null: the options want none.
std::unique_ptr<ShmHost> NewShmHost(const ServerOptions& options);
// `host` may be null. Until RemoveGauges().
void AddShmMetrics(const ShmHost* host, Metrics& metrics);

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGION_HOST_H_
