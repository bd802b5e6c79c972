// What numbers are in the tensors, and sums that are long.
#include "tests/cases/table.h"

namespace attnd::testing {
namespace {

using kernels::MaskSpec;

CaseGroup Distributions() {
  CaseGroup group{.name = "distribution"};
  for (kernels::DType dtype : kDTypes) {
    for (Distribution distribution :
         {Distribution::kLarge, Distribution::kTiny, Distribution::kConstant, Distribution::kOffset,
          Distribution::kSink, Distribution::kFarBelowZero}) {
      for (const MaskSpec& mask : {kFull, kCausal, MaskSpec{.causal = {}, .window = {40, 40}}}) {
        Add(group, {.dtype = dtype,
                    .q_heads = 2,
                    .kv_heads = 1,
                    .lens = {{80, 150}},
                    .head_dim = 64,
                    .mask = mask,
                    .distribution = distribution});
      }
    }
  }
  return group;
}

// Several steps of any kernel's keys, over which maxima grow: little, and by far.
CaseGroup GrowingMaxima() {
  CaseGroup group{.name = "growing_maxima"};
  for (kernels::DType dtype : kDTypes) {
    for (int64_t head_dim : {64, 96, 128}) {
      for (Distribution distribution : {Distribution::kNormal, Distribution::kLarge}) {
        for (const MaskSpec& mask : {kFull, kCausal, MaskSpec{.causal = {}, .window = {700, 0}}}) {
          Add(group, {.dtype = dtype,
                      .lens = {{75, 1500}},
                      .head_dim = head_dim,
                      .mask = mask,
                      .distribution = distribution});
        }
      }
    }
  }
  return group;
}

CaseGroup Scales() {
  CaseGroup group{.name = "scale"};
  for (kernels::DType dtype : kDTypes) {
    for (float scale : {1e-6f, 0.01f, 1.0f, 3.0f}) {
      Add(group, {.dtype = dtype, .lens = {{60, 90}}, .head_dim = 64, .scale = scale});
    }
  }
  return group;
}

// Rounding of a sum grows with its length unless it is cut into tiles.
CaseGroup LongSums() {
  CaseGroup group{.name = "long_sum"};
  for (kernels::DType dtype : kDTypes) {
    for (Distribution distribution : {Distribution::kNormal, Distribution::kOffset}) {
      Add(group,
          {.dtype = dtype, .lens = {{3, 16384}}, .head_dim = 64, .distribution = distribution});
      Add(group, {.dtype = dtype,
                  .lens = {{1, 20001}},
                  .head_dim = 16,
                  .mask = kCausal,
                  .distribution = distribution});
    }
  }
  return group;
}

}  // namespace

std::vector<CaseGroup> NumberGroups() {
  return {Distributions(), GrowingMaxima(), Scales(), LongSums()};
}

}  // namespace attnd::testing
