// What stands in front of bytes that are sent from where they lie.
#ifndef ATTND_SERVER_WIRE_BYTES_PREFIX_H_
#define ATTND_SERVER_WIRE_BYTES_PREFIX_H_

#include <cstdint>
#include <string>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"

namespace attnd::server::wire {

// A bytes field's tag and length; its bytes follow. Check() keeps answers within 32 bits.
inline void AppendBytesPrefix(int field_number, int64_t size_bytes, std::string& out) {
  using google::protobuf::internal::WireFormatLite;
  google::protobuf::io::StringOutputStream stream(&out);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.WriteTag(WireFormatLite::MakeTag(field_number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  coded.WriteVarint32(static_cast<uint32_t>(size_bytes));
}

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_BYTES_PREFIX_H_
