// The side socket: where callers on this host hand in their memory.
#ifndef ATTND_SERVER_REGIONS_REGION_SOCKET_H_
#define ATTND_SERVER_REGIONS_REGION_SOCKET_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/regions/protocol/frames.h"
#include "server/regions/protocol/packet.h"
#include "server/regions/protocol/unique_fd.h"
#include "server/regions/region_table.h"

namespace attnd::server {

struct RegionSocketOptions {
  // Empty: regions::DefaultSocketPath(), whose folder is made, and checked to be this user's alone.
  std::string path;
  std::string instance_id;              // as GetServerInfo has it; 1 to 63 bytes
  int max_connections = 256;            // more are told so and closed
  int max_regions_per_connection = 16;  // more are refused
  // Takes a connection over for calls (frames.h), or says why not; null: there are none. On the
  // socket's thread, so it must be short.
  std::function<absl::Status(regions::UniqueFd socket)> take_calls;
  // Who is at the other end; put in place by tests.
  std::function<absl::StatusOr<uid_t>(int socket)> peer_uid = regions::PeerUid;
};

// Serves protocol/frames.h to processes of this process' own effective user, on one thread; others
// are told PERMISSION_DENIED. Connections for calls are handed on. What a client does wrong ends
// its own connection and nothing else. Registrations run one after the other: one of a gigabyte
// holds the others up for about as long as touching its pages takes.
class RegionSocket {
 public:
  // INVALID_ARGUMENT for a path or instance id that is too long. UNAVAILABLE if a server listens
  // there already, FAILED_PRECONDITION if something else lies there or the folder is not private; a
  // dead server's socket is removed. The socket has mode 0600.
  static absl::StatusOr<std::unique_ptr<RegionSocket>> Listen(const RegionSocketOptions& options,
                                                              std::shared_ptr<RegionTable> table);

  // Ends all connections, and removes their regions and the socket's path.
  ~RegionSocket();

  const std::string& path() const { return path_; }
  // Nobody finds it from here on; connections stay. For a process that is about to end.
  void RemovePath() const;
  int64_t connections() const { return connection_count_; }
  // Connections ended for what they sent, or turned away.
  int64_t refused_connections() const { return refused_count_; }

 private:
  struct Connection {
    uid_t uid = 0;
    std::vector<RegionHandle> handles;
  };

  RegionSocket(const RegionSocketOptions& options, std::string path,
               std::shared_ptr<RegionTable> table, regions::UniqueFd listener,
               regions::UniqueFd wake);

  void Serve();
  // False if the process is out of descriptors, so that the listener would be ready for ever.
  bool AcceptOne();
  // OK if the connection may stay.
  absl::Status Admit(int socket, uid_t* uid) const;
  // False if the connection is to end.
  bool ServeOne(int socket, Connection& connection);
  // What a client may send.
  union Frame {
    regions::FrameHead head;
    regions::RegisterFrame file;
    regions::RegisterCudaFrame cuda;
    regions::OpenCallsFrame calls;
    Frame() : cuda() {}
  };
  // OK if it is one of these, with the descriptors that belong to it.
  static absl::Status CheckFrame(const Frame& frame, const regions::Packet& packet);
  absl::StatusOr<RegionHandle> Register(Connection& connection, const Frame& frame, int fd) const;
  absl::Status OpenCalls(int socket, const Connection& connection) const;
  void End(std::map<int, Connection>::iterator connection);

  const RegionSocketOptions options_;
  const std::string path_;
  const std::shared_ptr<RegionTable> table_;
  const regions::UniqueFd listener_;
  const regions::UniqueFd wake_;  // an eventfd: readable when the thread is to end
  ino_t path_inode_ = 0;

  std::map<int, Connection> connections_;  // by socket; the thread's own
  std::atomic<int64_t> connection_count_{0};
  std::atomic<int64_t> refused_count_{0};
  std::thread thread_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGIONS_REGION_SOCKET_H_
