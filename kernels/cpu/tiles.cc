#include "kernels/cpu/tiles.h"

#include "kernels/cpu/config.h"

namespace attnd::kernels::cpu {

Element ElementOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return Element::kF32;
    case DType::kF16:
      return Element::kF16;
    case DType::kBF16:
      return Element::kBF16;
  }
  return Element::kF32;
}

bool SeesFewKeys(const AttentionProblem& p) {
  return p.kv_len > 0 && p.kv_len <= kFewKeys &&
         p.mask.Resolve(p.q_len, p.kv_len).AllVisible(0, p.q_len, 0, p.kv_len);
}

FlashTile FlashTileOf(const WorkItem& item) {
  const AttentionProblem& p = item.task->problem;
  const AttentionArgs& a = item.task->args;
  const int64_t element_bytes = SizeBytes(p.dtype);
  const auto offset_bytes = [&](const Strides& strides) {
    return (item.batch * strides.batch + item.head * strides.head + item.row_begin * strides.row) *
           element_bytes;
  };
  FlashTile tile;
  tile.q = static_cast<const unsigned char*>(a.q) + offset_bytes(a.q_strides);
  tile.o = static_cast<unsigned char*>(a.o) + offset_bytes(a.o_strides);
  tile.q_row_stride_bytes = a.q_strides.row * element_bytes;
  tile.o_row_stride_bytes = a.o_strides.row * element_bytes;
  if (a.lse != nullptr) {
    tile.lse =
        a.lse + item.batch * a.lse_batch_stride + item.head * a.lse_head_stride + item.row_begin;
  }
  if (p.kv_len > 0) {
    tile.k = KeysOf(p, a, item.batch, item.head / p.group());
    tile.v = ValuesOf(p, a, item.batch, item.head / p.group());
  }
  tile.q_begin = item.row_begin;
  tile.rows = item.rows;
  tile.q_len = p.q_len;
  tile.kv_len = p.kv_len;
  tile.head_dim = p.head_dim;
  tile.band = p.mask.Resolve(p.q_len, p.kv_len);
  tile.scale = p.scale;
  tile.softcap = p.softcap;
  tile.alibi_slope = p.alibi ? a.alibi_slopes[item.head] : 0.0f;
  tile.element = ElementOf(p.dtype);
  tile.sees_few_keys = SeesFewKeys(p);
  return tile;
}

GroupTile GroupTileOf(const WorkItem& item) {
  const AttentionProblem& p = item.task->problem;
  const AttentionArgs& a = item.task->args;
  const int64_t element_bytes = SizeBytes(p.dtype);
  const int64_t q_head = item.head * p.group();
  const auto offset_bytes = [&](const Strides& strides) {
    return (item.batch * strides.batch + q_head * strides.head) * element_bytes;
  };
  GroupTile tile;
  tile.q = static_cast<const unsigned char*>(a.q) + offset_bytes(a.q_strides);
  tile.o = static_cast<unsigned char*>(a.o) + offset_bytes(a.o_strides);
  tile.q_row_stride_bytes = a.q_strides.row * element_bytes;
  tile.q_head_stride_bytes = a.q_strides.head * element_bytes;
  tile.o_row_stride_bytes = a.o_strides.row * element_bytes;
  tile.o_head_stride_bytes = a.o_strides.head * element_bytes;
  if (a.lse != nullptr) {
    tile.lse = a.lse + item.batch * a.lse_batch_stride + q_head * a.lse_head_stride;
    tile.lse_head_stride = a.lse_head_stride;
  }
  if (p.kv_len > 0) {
    tile.k = KeysOf(p, a, item.batch, item.head);
    tile.v = ValuesOf(p, a, item.batch, item.head);
  }
  tile.group = p.group();
  tile.row_begin = item.row_begin;
  tile.rows = item.rows;
  tile.q_len = p.q_len;
  tile.kv_len = p.kv_len;
  tile.head_dim = p.head_dim;
  tile.band = p.mask.Resolve(p.q_len, p.kv_len);
  tile.scale = p.scale;
  tile.softcap = p.softcap;
  tile.alibi_slopes = p.alibi ? a.alibi_slopes + q_head : nullptr;
  tile.element = ElementOf(p.dtype);
  return tile;
}

}  // namespace attnd::kernels::cpu
