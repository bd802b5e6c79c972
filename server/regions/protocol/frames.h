// What travels on the side socket: a Unix SOCK_SEQPACKET socket, one frame a packet, in the
// machine's own byte order, for both ends are on one host.
//
//   server: HelloFrame, at once. To a peer that it turns away, an AnswerFrame instead, and the end.
//   client: RegisterFrame with exactly one descriptor (SCM_RIGHTS): the sealed memfd; or
//           RegisterCudaFrame with one descriptor or none.
//   server: AnswerFrame: the region's handle, or why there is none.
//
// A client may register several, one after the other. There is no frame to take a region
// back: a region lives as long as its connection. Anything else that a client sends ends its
// connection.
//
// Or, on a connection without regions, calls whose tensors all lie in regions:
//
//   client: OpenCallsFrame.
//   server: AnswerFrame: calls may come, or why not.
//   client: CallFrame and behind it, in the same packet, a serialized attnd.v1.ComputeRequest.
//   server: CallAnswerFrame and behind it a ComputeResponse, or the error's text.
//
// One call at a time; its end comes before the next one. A client that ends the connection cancels
// it.
#ifndef ATTND_SERVER_REGIONS_PROTOCOL_FRAMES_H_
#define ATTND_SERVER_REGIONS_PROTOCOL_FRAMES_H_

#include <array>
#include <cstdint>
#include <type_traits>

namespace attnd::regions {

// 128 random bits: whoever knows them may use the region, on any channel.
using RegionHandle = std::array<unsigned char, 16>;

inline constexpr uint32_t kFrameMagic = 0x444E5441;  // "ATND" in memory
inline constexpr uint16_t kFrameVersion = 1;

enum class FrameType : uint16_t {
  kHello = 1,
  kRegister = 2,
  kAnswer = 3,
  kRegisterCuda = 4,
  kOpenCalls = 5,
  kCall = 6,
  kCallAnswer = 7,
};

// Stays as it is in every version.
struct FrameHead {
  uint32_t magic = kFrameMagic;
  uint16_t version = kFrameVersion;
  FrameType type = FrameType::kHello;
};

struct HelloFrame {
  FrameHead head = {.type = FrameType::kHello};
  char instance_id[64] = {};  // of GetServerInfo; padded with NUL, the last byte always NUL
};

struct RegisterFrame {
  FrameHead head = {.type = FrameType::kRegister};
  int64_t size_bytes = 0;  // the file's, exactly; a multiple of the page size, > 0
};

// Memory on a GPU. With a descriptor: what cuMemExportToShareableHandle gives, for all of one
// allocation. Without: `memory_handle`.
struct RegisterCudaFrame {
  FrameHead head = {.type = FrameType::kRegisterCuda};
  // With a descriptor: how much to map, > 0; the driver maps no more than there is. Without it: 0,
  // for the driver knows.
  int64_t size_bytes = 0;
  std::array<unsigned char, 16> gpu_uuid = {};       // cudaDeviceProp::uuid
  std::array<unsigned char, 64> memory_handle = {};  // a cudaIpcMemHandle_t
  // Calls wait for what this event has recorded when they begin. Only if has_event is 1, else 0.
  std::array<unsigned char, 64> event_handle = {};  // a cudaIpcEventHandle_t
  uint32_t has_event = 0;
  uint32_t reserved = 0;
};

struct AnswerFrame {
  FrameHead head = {.type = FrameType::kAnswer};
  int32_t code = 0;  // absl::StatusCode; 0: `handle` is a region
  RegionHandle handle = {};
  char text[484] = {};  // the error's; padded with NUL, the last byte always NUL
};

struct OpenCallsFrame {
  FrameHead head = {.type = FrameType::kOpenCalls};
};

struct CallFrame {
  FrameHead head = {.type = FrameType::kCall};
  int64_t timeout_us = 0;  // from the frame's arrival on; 0: none
};

struct CallAnswerFrame {
  FrameHead head = {.type = FrameType::kCallAnswer};
  int32_t code = 0;  // absl::StatusCode
  // Of an error, 0 or 1: the server has computed nothing, and holds none of the call's regions.
  uint32_t is_untouched = 0;
  uint32_t has_pushback = 0;
  uint32_t reserved = 0;
  int64_t pushback_ms = 0;  // when to come again; negative: never
};

// Packets are at most so large. A header of ten thousand sequences goes by gRPC; a longer error is
// cut.
inline constexpr int64_t kMaxCallPacketBytes = int64_t{64} << 10;
inline constexpr int64_t kMaxCallAnswerPacketBytes = int64_t{4} << 10;

static_assert(sizeof(HelloFrame) == 72 && sizeof(RegisterFrame) == 16 &&
              sizeof(RegisterCudaFrame) == 168 && sizeof(AnswerFrame) == 512 &&
              sizeof(OpenCallsFrame) == 8 && sizeof(CallFrame) == 16 &&
              sizeof(CallAnswerFrame) == 32);
static_assert(std::is_trivially_copyable_v<HelloFrame> &&
              std::is_trivially_copyable_v<RegisterFrame> &&
              std::is_trivially_copyable_v<RegisterCudaFrame> &&
              std::is_trivially_copyable_v<AnswerFrame> &&
              std::is_trivially_copyable_v<CallFrame> &&
              std::is_trivially_copyable_v<CallAnswerFrame>);

}  // namespace attnd::regions

#endif  // ATTND_SERVER_REGIONS_PROTOCOL_FRAMES_H_
