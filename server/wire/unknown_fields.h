// What protobuf parses without understanding it.
#ifndef ATTND_SERVER_WIRE_UNKNOWN_FIELDS_H_
#define ATTND_SERVER_WIRE_UNKNOWN_FIELDS_H_

#include <string>

#include "absl/status/status.h"

namespace google::protobuf {
class Message;
}

namespace attnd::server::wire {

// Fields from this number up are hints: ignored, whatever they hold.
inline constexpr int kFirstHintField = 1000;

// OK, or UNIMPLEMENTED naming the first field, at any depth, that this server does not know, or
// that came with another wire type than its own. `path` names the message.
absl::Status RefuseUnknownFields(const google::protobuf::Message& message, const std::string& path);

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_UNKNOWN_FIELDS_H_
