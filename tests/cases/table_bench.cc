// What kernel_bench times unless told otherwise: all backends within a minute on two cores.
#include "tests/cases/table.h"

namespace attnd::testing {
namespace {

CaseGroup Prefill() {
  CaseGroup group{.name = "prefill", .is_bench = true};
  for (kernels::DType dtype : kDTypes) {
    for (int64_t head_dim : {64, 128}) {
      for (const kernels::MaskSpec& mask : {kFull, kCausal}) {
        Add(group, {.dtype = dtype,
                    .q_heads = 4,
                    .kv_heads = 4,
                    .lens = {{1024, 1024}},
                    .head_dim = head_dim,
                    .mask = mask});
      }
    }
  }
  // Long enough that what a task does once does not show.
  for (const kernels::MaskSpec& mask : {kFull, kCausal}) {
    Add(group,
        {.dtype = kernels::DType::kBF16, .lens = {{4096, 4096}}, .head_dim = 128, .mask = mask});
  }
  return group;
}

// One row a head against a long cache, 32 query heads on 8 KV heads.
CaseGroup Decode() {
  CaseGroup group{.name = "decode", .is_bench = true};
  for (kernels::DType dtype : kDTypes) {
    Add(group,
        {.dtype = dtype, .q_heads = 32, .kv_heads = 8, .lens = {{1, 4096}}, .head_dim = 128});
  }
  return group;
}

// Work for some 10 us: what is around it shows.
CaseGroup Small() {
  CaseGroup group{.name = "small", .is_bench = true};
  for (kernels::DType dtype : kDTypes) {
    Add(group, {.dtype = dtype, .q_heads = 8, .kv_heads = 8, .lens = {{64, 64}}, .head_dim = 64});
  }
  return group;
}

CaseGroup General() {
  CaseGroup group{.name = "general", .is_bench = true};
  Case c{.q_heads = 4, .kv_heads = 4, .lens = {{1024, 1024}}, .head_dim = 64, .mask = kCausal};
  c.softcap = 30;
  Add(group, c);
  c.softcap = 0;
  c.alibi = true;
  Add(group, c);
  c.alibi = false;
  c.mask.window.left = 256;
  Add(group, c);
  return group;
}

// Cross-attention to a few tokens: reading Q and writing O is nearly all of it.
CaseGroup Cross() {
  CaseGroup group{.name = "cross", .is_bench = true};
  for (kernels::DType dtype : kDTypes) {
    for (int64_t kv_len : {1, 4}) {
      Add(group,
          {.dtype = dtype, .q_heads = 4, .kv_heads = 4, .lens = {{4096, kv_len}}, .head_dim = 128});
    }
  }
  return group;
}

// Memory must grow with the length, not with its square: compare peak_rss_mb.
CaseGroup Long() {
  CaseGroup group{.name = "long", .is_bench = true};
  for (int64_t length : {4096, 8192, 16384}) {
    Add(group, {.lens = {{length, length}}, .head_dim = 64, .mask = kCausal});
  }
  return group;
}

}  // namespace

std::vector<CaseGroup> BenchGroups() {
  return {Prefill(), Decode(), Small(), General(), Cross(), Long()};
}

}  // namespace attnd::testing
