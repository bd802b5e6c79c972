// Masks and what changes scores, one at a time and in pairs.
#include "tests/cases/table.h"

namespace attnd::testing {
namespace {

using kernels::Causal;
using kernels::kUnbounded;
using kernels::MaskSpec;
using kernels::WindowMask;

CaseGroup Causals() {
  CaseGroup group{.name = "causal"};
  for (kernels::DType dtype : kDTypes) {
    for (const MaskSpec& mask : {kCausal, kCausalTopLeft}) {
      const Lens all_lens[] = {{37, 130}, {130, 37}, {96, 96}, {1, 90},   {90, 1},
                               {64, 65},  {65, 64},  {2, 5},   {200, 200}};
      for (const Lens& lens : all_lens) {
        Add(group, {.dtype = dtype,
                    .q_heads = 2,
                    .kv_heads = 1,
                    .lens = {lens},
                    .head_dim = 48,
                    .mask = mask});
      }
    }
  }
  return group;
}

CaseGroup Windows() {
  CaseGroup group{.name = "window"};
  const WindowMask windows[] = {{16, kUnbounded}, {kUnbounded, 16}, {7, 9},   {0, 0},
                                {0, kUnbounded},  {kUnbounded, 0},  {63, 64}, {1000, 1000}};
  int turn = 0;
  for (const WindowMask& window : windows) {
    for (Causal alignment : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      for (const Lens& lens : {Lens{150, 150}, Lens{50, 170}, Lens{170, 50}}) {
        Add(group, {.dtype = kDTypes[turn++ % 3],
                    .q_heads = 2,
                    .kv_heads = 2,
                    .lens = {lens},
                    .head_dim = 64,
                    .mask = {.causal = {alignment}, .window = window}});
      }
      ++turn;  // so that lengths meet every dtype
    }
  }
  return group;
}

CaseGroup Softcaps() {
  CaseGroup group{.name = "softcap"};
  for (kernels::DType dtype : kDTypes) {
    for (float softcap : {0.5f, 1.0f, 30.0f, 50.0f}) {
      for (const MaskSpec& mask : {kFull, kCausal}) {
        for (float scale : {0.0f, 1.0f}) {
          Add(group, {.dtype = dtype,
                      .q_heads = 2,
                      .kv_heads = 1,
                      .lens = {{80, 100}},
                      .head_dim = 64,
                      .mask = mask,
                      .softcap = softcap,
                      .scale = scale});
        }
      }
    }
  }
  return group;
}

CaseGroup Alibis() {
  CaseGroup group{.name = "alibi"};
  for (kernels::DType dtype : kDTypes) {
    for (const MaskSpec& mask :
         {kFull, kCausal, MaskSpec{.causal = {}, .window = {20, kUnbounded}}}) {
      for (const Lens& lens : {Lens{90, 90}, Lens{40, 140}, Lens{140, 40}}) {
        Add(group, {.dtype = dtype,
                    .q_heads = 6,
                    .kv_heads = 2,
                    .lens = {lens},
                    .head_dim = 64,
                    .mask = mask,
                    .alibi = true});
      }
    }
  }
  return group;
}

}  // namespace

std::vector<CaseGroup> MaskGroups() { return {Causals(), Windows(), Softcaps(), Alibis()}; }

}  // namespace attnd::testing
