#include "tests/wire/messages.h"

#include <algorithm>
#include <cstring>

namespace attnd::testing {
namespace {

int64_t SizeBytes(const v1::TensorSpec& spec) {
  int64_t size_bytes = spec.dtype() == v1::DATA_TYPE_FLOAT32 ? 4 : 2;
  for (int64_t extent : spec.shape()) size_bytes *= extent;
  return size_bytes;
}

std::string Pattern(int64_t size_bytes, unsigned seed) {
  std::string bytes(static_cast<size_t>(size_bytes), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(seed + 31 * i + i / 251);
  return bytes;
}

int64_t Pick(std::mt19937& random, std::initializer_list<int64_t> values) {
  return values.begin()[random() % values.size()];
}

void SetDType(v1::ComputeHeader& header, v1::DataType dtype) {
  header.mutable_q()->set_dtype(dtype);
  header.mutable_k()->set_dtype(dtype);
  header.mutable_v()->set_dtype(dtype);
}

void RandomOptions(v1::ComputeHeader& header, int64_t q_heads, std::mt19937& random) {
  header.set_causal(static_cast<v1::CausalAlignment>(random() % 3));
  if (random() % 3 == 0) header.mutable_window()->set_left(Pick(random, {0, 3, INT64_MAX}));
  if (random() % 3 == 0) header.mutable_window()->set_right(Pick(random, {0, 2, 1 << 20}));
  if (random() % 2 == 0) header.set_scale(0.25f);
  if (random() % 2 == 0) header.set_softcap(30.0f);
  if (random() % 3 == 0) {
    for (int64_t head = 0; head < q_heads; ++head) {
      header.add_alibi_slopes(1.0f / static_cast<float>(head + 1));
    }
  }
  header.set_want_lse(random() % 2 == 0);
  header.set_priority(random() % 10);
  if (random() % 2 == 0) header.set_timeout_us(Pick(random, {1, 5000000, INT64_MAX}));
  if (random() % 2 == 0) header.set_request_id(std::string(random() % 129, 'r'));
}

void RandomLengths(google::protobuf::RepeatedField<int64_t>& ends, int sequences, int64_t total,
                   std::mt19937& random) {
  for (int i = 1; i < sequences; ++i) {
    ends.Add(static_cast<int64_t>(random() % static_cast<uint64_t>(total + 1)));
  }
  ends.Add(0);
  ends.Add(total);
  std::sort(ends.begin(), ends.end());
}

}  // namespace

void SetShape(v1::TensorSpec& spec, const std::vector<int64_t>& shape) {
  spec.clear_shape();
  spec.mutable_shape()->Add(shape.begin(), shape.end());
}

void FillPayloads(v1::ComputeRequest& request) {
  request.set_q(Pattern(SizeBytes(request.header().q()), 1));
  request.set_k(Pattern(SizeBytes(request.header().k()), 2));
  request.set_v(Pattern(SizeBytes(request.header().v()), 3));
}

v1::ComputeRequest DenseRequest() {
  v1::ComputeRequest request;
  v1::ComputeHeader& header = *request.mutable_header();
  SetDType(header, v1::DATA_TYPE_FLOAT32);
  SetShape(*header.mutable_q(), {2, 4, 3, 8});
  SetShape(*header.mutable_k(), {2, 2, 5, 8});
  SetShape(*header.mutable_v(), {2, 2, 5, 8});
  header.set_layout(v1::LAYOUT_BHSD);
  FillPayloads(request);
  return request;
}

v1::ComputeRequest PackedRequest() {
  v1::ComputeRequest request;
  v1::ComputeHeader& header = *request.mutable_header();
  SetDType(header, v1::DATA_TYPE_FLOAT16);
  SetShape(*header.mutable_q(), {7, 4, 8});
  SetShape(*header.mutable_k(), {9, 2, 8});
  SetShape(*header.mutable_v(), {9, 2, 8});
  header.set_layout(v1::LAYOUT_THD);
  for (int64_t end : {0, 3, 3, 7}) header.add_cu_seqlens_q(end);
  for (int64_t end : {0, 4, 6, 9}) header.add_cu_seqlens_kv(end);
  FillPayloads(request);
  return request;
}

v1::ComputeRequest RandomRequest(std::mt19937& random) {
  v1::ComputeRequest request;
  v1::ComputeHeader& header = *request.mutable_header();
  SetDType(header, static_cast<v1::DataType>(1 + random() % 3));
  header.set_layout(static_cast<v1::Layout>(random() % 4));
  const int64_t batch = Pick(random, {0, 1, 1, 3}), group = Pick(random, {1, 2, 7});
  const int64_t q_len = Pick(random, {0, 1, 3, 6}), kv_len = Pick(random, {0, 1, 4, 5});
  const int64_t dim = Pick(random, {1, 5, 8, 256});
  const bool no_head_axis = random() % 3 == 0;
  const int64_t kv_heads = no_head_axis ? 1 : Pick(random, {1, 1, 2});
  const int64_t q_heads = kv_heads * group;
  for (v1::TensorSpec* kv : {header.mutable_k(), header.mutable_v()}) {
    if (header.layout() == v1::LAYOUT_THD) {
      no_head_axis ? SetShape(*kv, {kv_len, dim}) : SetShape(*kv, {kv_len, kv_heads, dim});
    } else if (no_head_axis) {
      SetShape(*kv, {batch, kv_len, dim});
    } else if (header.layout() == v1::LAYOUT_BSHD) {
      SetShape(*kv, {batch, kv_len, kv_heads, dim});
    } else {
      SetShape(*kv, {batch, kv_heads, kv_len, dim});
    }
  }
  if (header.layout() == v1::LAYOUT_THD) {
    SetShape(*header.mutable_q(), {q_len, q_heads, dim});
    const int sequences = static_cast<int>(1 + random() % 4);
    RandomLengths(*header.mutable_cu_seqlens_q(), sequences, q_len, random);
    RandomLengths(*header.mutable_cu_seqlens_kv(), sequences, kv_len, random);
  } else if (header.layout() == v1::LAYOUT_BSHD) {
    SetShape(*header.mutable_q(), {batch, q_len, q_heads, dim});
  } else {
    SetShape(*header.mutable_q(), {batch, q_heads, q_len, dim});
  }
  RandomOptions(header, q_heads, random);
  FillPayloads(request);
  return request;
}

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

std::string Tag(uint32_t number, uint32_t wire_type) { return Varint(number << 3 | wire_type); }

std::string VarintField(uint32_t number, uint64_t value) { return Tag(number, 0) + Varint(value); }

std::string Fixed32Field(uint32_t number, uint32_t value) {
  std::string bytes = Tag(number, 5);
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

std::string Fixed64Field(uint32_t number, uint64_t value) {
  std::string bytes = Tag(number, 1);
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

std::string BytesField(uint32_t number, const std::string& bytes) {
  return Tag(number, 2) + Varint(bytes.size()) + bytes;
}

std::string GroupField(uint32_t number, const std::string& content) {
  return Tag(number, 3) + content + Tag(number, 4);
}

Split::Split(const std::string& bytes, std::vector<size_t> cuts) {
  cuts.push_back(bytes.size());
  std::sort(cuts.begin(), cuts.end());
  size_t begin = 0;
  for (size_t cut : cuts) {
    const size_t end = std::min(cut, bytes.size());
    pieces_.emplace_back(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                         bytes.begin() + static_cast<std::ptrdiff_t>(end));
    begin = end;
  }
  for (const auto& piece : pieces_) spans_.emplace_back(piece.data(), piece.size());
}

Split Split::EveryByte(const std::string& bytes) {
  std::vector<size_t> cuts(bytes.size());
  for (size_t i = 0; i < cuts.size(); ++i) cuts[i] = i;
  return Split(bytes, std::move(cuts));
}

Split Split::Random(const std::string& bytes, std::mt19937& random) {
  std::vector<size_t> cuts(random() % 8);
  for (size_t& cut : cuts) cut = random() % (bytes.size() + 1);
  return Split(bytes, std::move(cuts));
}

}  // namespace attnd::testing
