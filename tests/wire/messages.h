// Messages for the wire's tests: good requests to spoil, and raw protobuf fields to spoil them
// with.
#ifndef ATTND_TESTS_WIRE_MESSAGES_H_
#define ATTND_TESTS_WIRE_MESSAGES_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "attnd/v1/attnd.pb.h"
#include "server/wire/wire.h"

namespace attnd::testing {

// float32, BHSD: q [2, 4, 3, 8], k and v [2, 2, 5, 8], payloads filled.
v1::ComputeRequest DenseRequest();
// float16, THD: q [7, 4, 8], k and v [9, 2, 8]; three sequences, the middle one without queries.
v1::ComputeRequest PackedRequest();
// Any valid request, small: every layout, dtype, mask and optional field; zero extents too.
v1::ComputeRequest RandomRequest(std::mt19937& random);

void SetShape(v1::TensorSpec& spec, const std::vector<int64_t>& shape);
// Sets all three payloads to the sizes that their shapes ask for, with bytes that differ.
void FillPayloads(v1::ComputeRequest& request);

// Raw protobuf.
std::string Varint(uint64_t value);
std::string Tag(uint32_t number, uint32_t wire_type);
std::string VarintField(uint32_t number, uint64_t value);
std::string Fixed32Field(uint32_t number, uint32_t value);
std::string Fixed64Field(uint32_t number, uint64_t value);
std::string BytesField(uint32_t number, const std::string& bytes);
std::string GroupField(uint32_t number, const std::string& content);

// The same bytes in pieces of their own memory, so that a sanitizer sees a read past one.
class Split {
 public:
  // `cuts`: offsets, in any order; those past the end are taken as the end.
  Split(const std::string& bytes, std::vector<size_t> cuts);
  static Split EveryByte(const std::string& bytes);
  static Split Random(const std::string& bytes, std::mt19937& random);

  absl::Span<const server::wire::ByteSpan> spans() const { return spans_; }

 private:
  std::vector<std::vector<unsigned char>> pieces_;
  std::vector<server::wire::ByteSpan> spans_;
};

}  // namespace attnd::testing

#endif  // ATTND_TESTS_WIRE_MESSAGES_H_
