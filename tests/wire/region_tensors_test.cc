// Places in regions, drawn at random and often absurd: what is accepted lies in its region.
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <random>

#include "gtest/gtest.h"
#include "server/regions/region_table.h"
#include "tests/regions/regions.h"
#include "tests/wire/messages.h"

namespace attnd::testing {
namespace {

using server::Request;

constexpr int64_t kRegionBytes = int64_t{1} << 20;
constexpr int kRounds = 5000;

int64_t Number(std::mt19937& random) {
  switch (random() % 8) {
    case 0:
      return static_cast<int64_t>(uint64_t{random()} << 32 | random());
    case 1:
      return int64_t{1} << (random() % 63);
    case 2:
      return static_cast<int64_t>(random() % 3) - 1;
    default:
      return random() % 4096 * 4;
  }
}

void Draw(const server::RegionHandle& handle, int axes, std::mt19937& random,
          v1::RegionRange* range, google::protobuf::RepeatedField<int64_t>* strides) {
  range->set_handle(handle.data(), handle.size());
  range->set_offset_bytes(random() % 2 == 0 ? random() % 1024 * 64 : Number(random));
  if (random() % 2 == 0) return;
  for (int axis = 0; axis + 1 < axes; ++axis) strides->Add(Number(random));
  strides->Add(random() % 16 == 0 ? Number(random) : 1);
}

// Its first byte, and one past its last, of the elements that the slots name.
void ExpectWithin(const char* name, const unsigned char* base, int64_t offset_elems,
                  const kernels::Strides& strides, int64_t batch, int64_t heads, int64_t len,
                  int64_t row_elems, int64_t element_bytes, const unsigned char* region) {
  if (batch == 0 || heads == 0 || len == 0) return;
  const int64_t begin = base - region + offset_elems * element_bytes;
  const int64_t last = offset_elems + (batch - 1) * strides.batch + (heads - 1) * strides.head +
                       (len - 1) * strides.row + row_elems;
  EXPECT_GE(begin, 0) << name;
  EXPECT_LE(base - region + last * element_bytes, kRegionBytes) << name;
}

TEST(RegionTensors, WhatIsAcceptedLiesInItsRegion) {
  const auto fd = server::NewMemfd(kRegionBytes);
  server::RegionTable table({});
  const auto handle = table.Add(0, fd.get(), kRegionBytes);
  ASSERT_TRUE(handle.ok()) << handle.status();
  const unsigned char* region = nullptr;
  {
    const auto whole = table.Pin(*handle, 0, kRegionBytes, server::Access::kRead);
    region = whole->data();
  }
  server::wire::Limits limits;
  limits.takes_regions = true;
  server::BufferPool pool(int64_t{1} << 30);
  std::mt19937 random(31);
  int accepted = 0;
  for (int round = 0; round < kRounds; ++round) {
    v1::ComputeRequest message = RandomRequest(random);
    v1::ComputeHeader* const header = message.mutable_header();
    limits.region_gaps = random() % 2 == 0;
    const auto draw = [&](v1::TensorSpec* spec, std::string* bytes) {
      Draw(*handle, spec->shape_size(), random, spec->mutable_region(),
           spec->mutable_strides_elems());
      bytes->clear();
    };
    draw(header->mutable_q(), message.mutable_q());
    draw(header->mutable_k(), message.mutable_k());
    draw(header->mutable_v(), message.mutable_v());
    v1::Destination* const o = header->mutable_o_destination();
    Draw(*handle, header->q().shape_size(), random, o->mutable_region(),
         o->mutable_strides_elems());
    const Split split = Split::Random(message.SerializeAsString(), random);
    const auto request = server::wire::Decode(split.spans(), limits, {}, pool, &table);
    if (!request.ok()) continue;
    ++accepted;
    for (const server::ProblemSlot& s : (*request)->problems) {
      const kernels::AttentionProblem& p = s.problem;
      const int64_t bytes = kernels::SizeBytes(p.dtype);
      ExpectWithin("q", (*request)->q.data(), s.q_offset_elems, s.q_strides, p.batch, p.q_heads,
                   p.q_len, p.head_dim, bytes, region);
      ExpectWithin("k", (*request)->k.data(), s.k_offset_elems, s.k_strides, p.batch, p.kv_heads,
                   p.kv_len, p.head_dim, bytes, region);
      ExpectWithin("v", (*request)->v.data(), s.v_offset_elems, s.v_strides, p.batch, p.kv_heads,
                   p.kv_len, p.head_dim, bytes, region);
      ExpectWithin("o", (*request)->output.o_place, s.o_offset_elems, s.o_strides, p.batch,
                   p.q_heads, p.q_len, p.head_dim, bytes, region);
    }
  }
  EXPECT_GT(accepted, kRounds / 100);
  EXPECT_LT(accepted, kRounds * 9 / 10);
  EXPECT_EQ(table.counts().leases, 0);
}

}  // namespace
}  // namespace attnd::testing
