// A message that lies in several spans, read as if it were one.
#ifndef ATTND_SERVER_WIRE_SPAN_READER_H_
#define ATTND_SERVER_WIRE_SPAN_READER_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/types/span.h"
#include "kernels/copy.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {

// Moves forward only. The spans outlive the reader; empty ones are fine.
class SpanReader {
 public:
  explicit SpanReader(absl::Span<const ByteSpan> spans) : spans_(spans) {
    for (const ByteSpan& span : spans_) left_bytes_ += static_cast<int64_t>(span.size());
  }

  int64_t offset_bytes() const { return offset_bytes_; }
  int64_t left_bytes() const { return left_bytes_; }

  // The next `size_bytes` bytes, at most left_bytes(): passed over, appended, or copied to a place
  // in a tensor of `tensor_bytes`.
  void Skip(int64_t size_bytes) {
    Take(size_bytes, [](const unsigned char*, size_t) {});
  }
  void AppendTo(int64_t size_bytes, std::string& out) {
    Take(size_bytes, [&out](const unsigned char* piece, size_t size) {
      out.append(reinterpret_cast<const char*>(piece), size);
    });
  }
  void CopyTo(int64_t size_bytes, unsigned char* out, int64_t tensor_bytes) {
    const bool beyond_caches = tensor_bytes >= kBeyondCachesBytes;
    Take(size_bytes, [&out, beyond_caches](const unsigned char* piece, size_t size) {
      if (beyond_caches) {
        CopyBeyondCaches(out, piece, size);
      } else {
        std::memcpy(out, piece, size);
      }
      out += size;
    });
  }

  // Reads a varint of at most `max_bytes` bytes (10 at most; bits past 64 are dropped, as protobuf
  // does) and appends its bytes to `raw`. False if it is longer or the message ends first.
  bool ReadVarint(int max_bytes, uint64_t& value, std::string& raw) {
    value = 0;
    for (int i = 0; i < max_bytes && left_bytes_ > 0; ++i) {
      const unsigned char byte = TakeByte();
      raw.push_back(static_cast<char>(byte));
      value |= uint64_t{byte & 0x7fu} << (7 * i);
      if (byte < 0x80) return true;
    }
    return false;
  }

 private:
  template <typename Sink>
  void Take(int64_t size_bytes, Sink sink) {
    offset_bytes_ += size_bytes;
    left_bytes_ -= size_bytes;
    while (size_bytes > 0) {
      const ByteSpan piece = spans_.front().subspan(at_, static_cast<size_t>(size_bytes));
      if (!piece.empty()) sink(piece.data(), piece.size());
      size_bytes -= static_cast<int64_t>(piece.size());
      at_ += piece.size();
      if (at_ == spans_.front().size()) {
        spans_.remove_prefix(1);
        at_ = 0;
      }
    }
  }

  // Take(1), for what is read byte by byte.
  unsigned char TakeByte() {
    while (at_ == spans_.front().size()) {
      spans_.remove_prefix(1);
      at_ = 0;
    }
    ++offset_bytes_;
    --left_bytes_;
    return spans_.front()[at_++];
  }

  absl::Span<const ByteSpan> spans_;  // from the one being read
  size_t at_ = 0;                     // in the first of them
  int64_t offset_bytes_ = 0;
  int64_t left_bytes_ = 0;
};

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_SPAN_READER_H_
