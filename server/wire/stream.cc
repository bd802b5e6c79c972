#include "server/wire/stream.h"

#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/wire/extents.h"
#include "server/wire/scanner.h"

namespace attnd::server::wire {
namespace {

using absl::InvalidArgumentError;
using absl::StrCat;

constexpr char kWhatMayBeWrong[] =
    "a field inside is cut short or malformed, groups do not match, or request_id is not valid "
    "UTF-8";
// Of a message and of a chunk without its data: a few bytes, and hints.
constexpr int64_t kMaxRestBytes = 4096;

// The spans of a part of a message.
std::vector<ByteSpan> Cut(absl::Span<const ByteSpan> message, const Payload& part) {
  std::vector<ByteSpan> cut;
  int64_t skip = part.offset_bytes;
  int64_t left = part.size_bytes;
  for (const ByteSpan& span : message) {
    if (left == 0) break;
    const auto size = static_cast<int64_t>(span.size());
    if (skip >= size) {
      skip -= size;
      continue;
    }
    cut.push_back(span.subspan(static_cast<size_t>(skip), static_cast<size_t>(left)));
    left -= static_cast<int64_t>(cut.back().size());
    skip = 0;
  }
  return cut;
}

absl::Status ReadHeader(absl::Span<const ByteSpan> bytes, const Limits& limits, StreamPart& part) {
  const ScanRules rules{"ComputeHeader", "header", "nothing", limits.max_header_bytes, {}};
  Scanner scanner(bytes, rules);
  if (absl::Status status = scanner.Run(); !status.ok()) return status;
  part.header = std::make_unique<v1::ComputeHeader>();
  return scanner.ParseRest(*part.header, kWhatMayBeWrong);
}

absl::Status ReadChunk(absl::Span<const ByteSpan> bytes, int64_t offset_bytes, StreamPart& part) {
  const ScannedField fields[] = {{v1::Chunk::kOperandFieldNumber, "operand", nullptr},
                                 {v1::Chunk::kOffsetBytesFieldNumber, "offset_bytes", nullptr},
                                 {v1::Chunk::kDataFieldNumber, "data", &part.data}};
  const ScanRules rules{"Chunk", "chunk", "data", kMaxRestBytes, fields};
  Scanner scanner(bytes, rules);
  if (absl::Status status = scanner.Run(); !status.ok()) return status;
  v1::Chunk rest;
  if (absl::Status status = scanner.ParseRest(rest, kWhatMayBeWrong); !status.ok()) return status;
  part.operand = rest.operand();
  part.offset_bytes = rest.offset_bytes();
  part.data.offset_bytes += offset_bytes;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StreamPart> ScanStreamPart(absl::Span<const ByteSpan> message,
                                          const Limits& limits) {
  Payload header, chunk;
  const ScannedField fields[] = {{v1::ComputeStreamRequest::kHeaderFieldNumber, "header", &header},
                                 {v1::ComputeStreamRequest::kChunkFieldNumber, "chunk", &chunk}};
  const ScanRules rules{"ComputeStreamRequest", "message", "its part", kMaxRestBytes, fields};
  Scanner scanner(message, rules);
  if (absl::Status status = scanner.Run(); !status.ok()) return status;
  v1::ComputeStreamRequest rest;
  if (absl::Status status = scanner.ParseRest(rest, kWhatMayBeWrong); !status.ok()) return status;
  if (header.count + chunk.count != 1) {
    return InvalidArgumentError(StrCat("a ComputeStreamRequest holds a header or a chunk, once; ",
                                       "this one holds ", header.count, " headers and ",
                                       chunk.count, " chunks"));
  }
  StreamPart part;
  const Payload& where = header.present ? header : chunk;
  const std::vector<ByteSpan> bytes = Cut(message, where);
  const absl::Status status =
      header.present ? ReadHeader(bytes, limits, part) : ReadChunk(bytes, where.offset_bytes, part);
  if (!status.ok()) return status;
  return part;
}

absl::StatusOr<Upload> Upload::Begin(std::unique_ptr<Request>& request, const PayloadBytes& sizes,
                                     BufferPool& pool) {
  const int64_t wanted[3] = {sizes.q, sizes.k, sizes.v};
  Buffer got[3];
  for (int i = 0; i < 3; ++i) {
    absl::StatusOr<Buffer> buffer = pool.Allocate(wanted[i]);
    if (!buffer.ok()) return buffer.status();
    got[i] = *std::move(buffer);
  }
  Upload upload;
  upload.request_ = std::move(request);
  Buffer* const to[3] = {&upload.request_->q, &upload.request_->k, &upload.request_->v};
  constexpr const char* kNames[3] = {"q", "k", "v"};
  for (int i = 0; i < 3; ++i) {
    *to[i] = std::move(got[i]);
    upload.operands_[i] = {kNames[i], to[i], 0, {}};
  }
  return upload;
}

absl::Status Upload::Add(absl::Span<const ByteSpan> message, const StreamPart& chunk) {
  if (!v1::Operand_IsValid(chunk.operand)) {
    return UnknownEnumValue("chunk.operand", "Operand", chunk.operand);
  }
  if (chunk.operand < v1::OPERAND_Q || chunk.operand > v1::OPERAND_V) {
    return InvalidArgumentError(StrCat("chunk.operand is ", v1::Operand_Name(chunk.operand),
                                       "; a request has OPERAND_Q, OPERAND_K and OPERAND_V"));
  }
  Operand& operand = operands_[chunk.operand - v1::OPERAND_Q];
  const int64_t total_bytes = operand.buffer->size_bytes();
  const int64_t size_bytes = chunk.data.size_bytes;
  if (chunk.offset_bytes < 0 || chunk.offset_bytes > total_bytes ||
      size_bytes > total_bytes - chunk.offset_bytes) {
    return InvalidArgumentError(StrCat("a chunk of ", operand.name, " has ", size_bytes,
                                       " bytes at offset_bytes ", chunk.offset_bytes, "; ",
                                       operand.name, " has ", total_bytes, " bytes"));
  }
  if (size_bytes == 0) return absl::OkStatus();
  const absl::Status status = Insert(operand, chunk.offset_bytes, chunk.offset_bytes + size_bytes);
  if (!status.ok()) return status;
  SpanReader reader(message);
  reader.Skip(chunk.data.offset_bytes);
  reader.CopyTo(size_bytes, operand.buffer->data() + chunk.offset_bytes, total_bytes);
  operand.received_bytes += size_bytes;
  return absl::OkStatus();
}

// Joins what touches, so that chunks in order are one piece.
absl::Status Upload::Insert(Operand& operand, int64_t begin, int64_t end) {
  std::map<int64_t, int64_t>& pieces = operand.pieces;
  const auto next = pieces.lower_bound(begin);
  const auto before = next == pieces.begin() ? pieces.end() : std::prev(next);
  const bool hits_next = next != pieces.end() && next->first < end;
  if (hits_next || (before != pieces.end() && before->second > begin)) {
    const auto hit = hits_next ? next : before;
    return InvalidArgumentError(StrCat("a chunk of ", operand.name, " is bytes ", begin, " to ",
                                       end, "; bytes ", hit->first, " to ", hit->second,
                                       " are there already"));
  }
  if (next != pieces.end() && next->first == end) {
    end = next->second;
    pieces.erase(next);
  }
  if (before != pieces.end() && before->second == begin) {
    before->second = end;
    return absl::OkStatus();
  }
  if (static_cast<int64_t>(pieces.size()) >= kMaxPieces) {
    return InvalidArgumentError(StrCat("the chunks of ", operand.name, " leave more than ",
                                       kMaxPieces, " gaps at a time: send them more in order"));
  }
  pieces[begin] = end;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Request>> Upload::Finish() {
  for (const Operand& operand : operands_) {
    const int64_t total_bytes = operand.buffer->size_bytes();
    if (operand.received_bytes == total_bytes) continue;
    const auto first = operand.pieces.begin();
    const bool at_begin = first == operand.pieces.end() || first->first != 0;
    return InvalidArgumentError(StrCat("the chunks of ", operand.name, " are ",
                                       operand.received_bytes, " bytes of ", total_bytes, ": byte ",
                                       at_begin ? 0 : first->second, " is missing"));
  }
  return std::move(request_);
}

int64_t Upload::received_bytes() const {
  return operands_[0].received_bytes + operands_[1].received_bytes + operands_[2].received_bytes;
}

}  // namespace attnd::server::wire
