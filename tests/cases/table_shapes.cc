// Shapes: head_dim, heads, lengths, layouts, and nothing at all.
#include <array>

#include "tests/cases/table.h"
#include "tests/cases/values.h"

namespace attnd::testing {
namespace {

using kernels::kUnbounded;
using kernels::MaskSpec;

constexpr MaskSpec kBand = {.causal = {}, .window = {33, 5}};

// Vector widths, head_dim classes, their neighbours, and odd ones: every dtype, every family.
CaseGroup HeadDims() {
  CaseGroup group{.name = "head_dim"};
  for (kernels::DType dtype : kDTypes) {
    for (int64_t d : {1, 7, 8, 16, 32, 40, 64, 72, 80, 96, 100, 128, 160, 192, 200, 256}) {
      Case c{.dtype = dtype, .q_heads = 4, .kv_heads = 2, .lens = {{67, 131}}, .head_dim = d};
      Add(group, c);
      c.mask = kCausal;
      c.lens = {{97, 97}};
      Add(group, c);
      c.mask = kBand;
      c.lens = {{70, 110}};
      c.softcap = 20;
      c.alibi = true;
      Add(group, c);
    }
  }
  return group;
}

// MHA, GQA and MQA.
CaseGroup Heads() {
  CaseGroup group{.name = "heads"};
  const struct {
    int64_t q_heads, kv_heads;
  } all_heads[] = {{1, 1}, {3, 3}, {4, 2}, {6, 3}, {14, 2}, {28, 4}, {5, 1}, {8, 1}};
  for (kernels::DType dtype : kDTypes) {
    for (const auto& heads : all_heads) {
      for (const MaskSpec& mask : {kFull, kCausal}) {
        Add(group, {.dtype = dtype,
                    .batch = 2,
                    .q_heads = heads.q_heads,
                    .kv_heads = heads.kv_heads,
                    .lens = {{33, 65}},
                    .head_dim = 32,
                    .mask = mask});
      }
      // Decode: one row a head, where kernels put the group of heads into one tile.
      Add(group, {.dtype = dtype,
                  .batch = 3,
                  .q_heads = heads.q_heads,
                  .kv_heads = heads.kv_heads,
                  .lens = {{1, 150}},
                  .head_dim = 64});
    }
  }
  return group;
}

// One below, at and one above the edges at which tiles usually end.
CaseGroup Lengths() {
  CaseGroup group{.name = "lengths"};
  int turn = 0;
  for (int64_t edge : {16, 32, 64, 128, 256}) {
    for (int64_t length : {edge - 1, edge, edge + 1}) {
      const Lens all_lens[] = {{length, length}, {1, length}, {length, 1}, {length, 77}};
      for (const Lens& lens : all_lens) {
        for (const MaskSpec& mask : {kFull, kCausal}) {
          Add(group, {.dtype = kDTypes[turn++ % 3], .lens = {lens}, .head_dim = 40, .mask = mask});
        }
      }
    }
  }
  return group;
}

// Few keys for many rows, which some kernels take another way where every row sees all of them.
CaseGroup FewKeys() {
  CaseGroup group{.name = "few_keys"};
  int turn = 0;
  for (int64_t kv_len : {1, 2, 3, 4, 5, 9}) {
    for (int64_t q_len : {2, 3, 16, 145, 300}) {
      Case c{.dtype = kDTypes[turn % 3], .q_heads = 2, .lens = {{q_len, kv_len}}};
      c.head_dim = std::array<int64_t, 4>{128, 64, 40, 7}[turn % 4];
      c.softcap = turn % 5 == 0 ? 2.0f : 0.0f;
      c.alibi = turn % 7 == 0;
      c.layout = turn % 2 == 0 ? Layout::kBSHD : Layout::kBHSD;
      for (const MaskSpec& mask : {kFull, kCausal, kCausalTopLeft, kBand}) {
        c.mask = mask;
        Add(group, c);
      }
      ++turn;
    }
  }
  for (kernels::DType dtype : kDTypes) {
    for (Distribution distribution : {Distribution::kLarge, Distribution::kTiny,
                                      Distribution::kOffset, Distribution::kFarBelowZero}) {
      Add(group, {.dtype = dtype, .lens = {{70, 4}}, .distribution = distribution});
    }
  }
  return group;
}

CaseGroup Layouts() {
  CaseGroup group{.name = "layout"};
  for (kernels::DType dtype : kDTypes) {
    for (const MaskSpec& mask : {kFull, kCausal, kBand}) {
      Case c{.dtype = dtype, .batch = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 24, .mask = mask};
      c.lens = {{50, 70}};
      Add(group, c);
      c.layout = Layout::kBSHD;
      Add(group, c);
      c.layout = Layout::kTHD;
      c.batch = 6;
      c.lens = {{5, 9}, {0, 7}, {33, 0}, {64, 64}, {1, 200}, {17, 3}};
      Add(group, c);
    }
  }
  return group;
}

// No batch, no heads, no rows, no keys; rows that see no key.
CaseGroup Empties() {
  CaseGroup group{.name = "empty"};
  // Keys of the last row end far before the window of the first begins: no row sees any.
  const MaskSpec disjoint = {.causal = {kernels::Causal::kTopLeft}, .window = {4, kUnbounded}};
  for (kernels::DType dtype : kDTypes) {
    const Case base{.dtype = dtype, .batch = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 32};
    const auto add = [&](int64_t batch, int64_t heads, Lens lens, const MaskSpec& mask) {
      Case c = base;
      c.batch = batch;
      if (heads == 0) c.q_heads = c.kv_heads = 0;
      c.lens = {lens};
      c.mask = mask;
      Add(group, c);
    };
    add(0, 1, {9, 9}, kFull);
    add(2, 0, {9, 9}, kFull);
    for (const MaskSpec& mask : {kFull, kCausal, kBand}) {
      add(2, 1, {0, 9}, mask);
      add(2, 1, {9, 0}, mask);
    }
    add(2, 1, {0, 0}, kFull);
    add(2, 1, {200, 40}, kCausal);
    add(2, 1, {200, 40}, {.causal = {}, .window = {3, 3}});
    add(2, 1, {200, 40}, {.causal = {}, .window = {0, 0}});
    add(2, 1, {30, 90}, disjoint);
    add(1, 1, {90, 60}, {.causal = {kernels::Causal::kTopLeft}, .window = {kUnbounded, 0}});
  }
  return group;
}

// Everything at once, drawn at random: combinations that nobody would write down.
CaseGroup Mixtures() {
  CaseGroup group{.name = "mixture"};
  Random random(2026);
  for (int i = 0; i < 60; ++i) {
    Case c{.dtype = kDTypes[i % 3]};
    c.layout = random.Below(2) == 0 ? Layout::kBHSD : Layout::kBSHD;
    c.batch = 1 + random.Below(2);
    c.kv_heads = 1 + random.Below(3);
    c.q_heads = c.kv_heads * (1 + random.Below(4));
    c.lens = {{1 + random.Below(140), 1 + random.Below(180)}};
    c.head_dim = 1 + random.Below(random.Below(2) == 0 ? 64 : 256);
    c.mask.causal.alignment = static_cast<kernels::Causal>(random.Below(3));
    if (random.Below(2) == 0) c.mask.window.left = random.Below(100);
    if (random.Below(3) == 0) c.mask.window.right = random.Below(60);
    if (random.Below(3) == 0) c.softcap = static_cast<float>(1 + random.Below(50));
    c.alibi = random.Below(3) == 0;
    Add(group, c);
  }
  return group;
}

}  // namespace

std::vector<CaseGroup> ShapeGroups() {
  return {HeadDims(), Heads(), Lengths(), FewKeys(), Layouts(), Empties(), Mixtures()};
}

}  // namespace attnd::testing
