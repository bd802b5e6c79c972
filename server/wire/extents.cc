#include "server/wire/extents.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attnd::server::wire {
namespace {

using absl::InvalidArgumentError;
using absl::StrCat;
using kernels::DType;

struct NamedSpec {
  const char* name;
  const v1::TensorSpec& spec;
};

std::string ShapeOf(const v1::TensorSpec& spec) {
  return StrCat("[", absl::StrJoin(spec.shape(), ", "), "]");
}

std::string DTypeOf(const v1::TensorSpec& spec, const FieldNames& names) {
  switch (spec.dtype()) {
    case v1::DATA_TYPE_FLOAT32:
      return names.f32;
    case v1::DATA_TYPE_FLOAT16:
      return names.f16;
    case v1::DATA_TYPE_BFLOAT16:
      return names.bf16;
    default:
      return v1::DataType_Name(spec.dtype());
  }
}

// "q and k must have the same batch: ...".
std::string Differ(const NamedSpec& a, const NamedSpec& b, const char* in) {
  return StrCat(a.name, " and ", b.name, " must have the same ", in, ": ", a.name, ".shape is ",
                ShapeOf(a.spec), ", ", b.name, ".shape is ", ShapeOf(b.spec));
}

std::string LayoutOf(v1::Layout layout) { return v1::Layout_Name(layout); }

// Elements of a shape without negative extents; false if they overflow as bytes of `element_bytes`.
bool SizeBytesOf(const v1::TensorSpec& spec, int64_t element_bytes, int64_t& size_bytes) {
  size_bytes = element_bytes;
  for (int64_t extent : spec.shape()) {
    if (extent == 0) {
      size_bytes = 0;
      return true;
    }
  }
  for (int64_t extent : spec.shape()) {
    if (__builtin_mul_overflow(size_bytes, extent, &size_bytes)) return false;
  }
  return true;
}

absl::Status CheckPresent(const v1::ComputeHeader& header) {
  if (!header.has_q()) return InvalidArgumentError("header.q is missing");
  if (!header.has_k()) return InvalidArgumentError("header.k is missing");
  if (!header.has_v()) return InvalidArgumentError("header.v is missing");
  return absl::OkStatus();
}

absl::StatusOr<DType> ReadDType(const v1::ComputeHeader& header, const FieldNames& names) {
  for (const NamedSpec& tensor :
       {NamedSpec{"q.dtype", header.q()}, {"k.dtype", header.k()}, {"v.dtype", header.v()}}) {
    if (!v1::DataType_IsValid(tensor.spec.dtype())) {
      return UnknownEnumValue(tensor.name, "DataType", tensor.spec.dtype());
    }
    if (tensor.spec.dtype() == v1::DATA_TYPE_UNSPECIFIED) {
      return InvalidArgumentError(StrCat(tensor.name, " is ", DTypeOf(tensor.spec, names),
                                         "; name one, such as ", names.f32));
    }
  }
  if (header.q().dtype() != header.k().dtype() || header.q().dtype() != header.v().dtype()) {
    return InvalidArgumentError(StrCat(
        "q, k and v must have one dtype: q.dtype is ", DTypeOf(header.q(), names), ", k.dtype is ",
        DTypeOf(header.k(), names), ", v.dtype is ", DTypeOf(header.v(), names)));
  }
  switch (header.q().dtype()) {
    case v1::DATA_TYPE_FLOAT16:
      return DType::kF16;
    case v1::DATA_TYPE_BFLOAT16:
      return DType::kBF16;
    default:
      return DType::kF32;
  }
}

absl::Status CheckShape(const NamedSpec& tensor, v1::Layout layout, int min_rank, int max_rank,
                        int64_t element_bytes, const FieldNames& names) {
  const v1::TensorSpec& spec = tensor.spec;
  if (spec.shape_size() < min_rank || spec.shape_size() > max_rank) {
    const std::string wanted =
        min_rank == max_rank ? StrCat(max_rank) : StrCat(max_rank, " or ", min_rank);
    return InvalidArgumentError(StrCat(tensor.name, ".shape has rank ", spec.shape_size(), ", ",
                                       ShapeOf(spec), "; ", LayoutOf(layout), " needs rank ",
                                       wanted));
  }
  for (int axis = 0; axis < spec.shape_size(); ++axis) {
    if (spec.shape(axis) < 0) {
      return InvalidArgumentError(StrCat(tensor.name, ".shape[", axis, "] is ", spec.shape(axis),
                                         "; it must be at least 0"));
    }
  }
  int64_t size_bytes = 0;
  if (!SizeBytesOf(spec, element_bytes, size_bytes)) {
    return InvalidArgumentError(StrCat(tensor.name, ".shape is ", ShapeOf(spec), " of ",
                                       DTypeOf(spec, names),
                                       "; its size in bytes overflows 64 bits"));
  }
  return absl::OkStatus();
}

absl::Status CheckShapes(const v1::ComputeHeader& header, v1::Layout layout, DType dtype,
                         const FieldNames& names) {
  const int rank = layout == v1::LAYOUT_THD ? 3 : 4;
  const int64_t element_bytes = kernels::SizeBytes(dtype);
  const NamedSpec q{names.q, header.q()}, k{names.k, header.k()}, v{names.v, header.v()};
  absl::Status status = CheckShape(q, layout, rank, rank, element_bytes, names);
  if (status.ok()) status = CheckShape(k, layout, rank - 1, rank, element_bytes, names);
  if (status.ok()) status = CheckShape(v, layout, rank - 1, rank, element_bytes, names);
  if (!status.ok()) return status;
  if (ShapeOf(header.k()) != ShapeOf(header.v())) {
    return InvalidArgumentError(StrCat(Differ(k, v, "shape"), " (v_head_dim is not supported)"));
  }
  return absl::OkStatus();
}

// Places of the axes in a shape of full rank; -1: no such axis.
struct Axes {
  int batch;
  int heads;
  int len;
};

Axes AxesOf(v1::Layout layout) {
  switch (layout) {
    case v1::LAYOUT_BSHD:
      return {0, 2, 1};
    case v1::LAYOUT_THD:
      return {-1, 1, 0};
    default:
      return {0, 1, 2};
  }
}

// K's and V's shape with the head axis that may have been left out.
std::vector<int64_t> FullKvShape(const v1::TensorSpec& k, v1::Layout layout) {
  std::vector<int64_t> shape(k.shape().begin(), k.shape().end());
  const size_t full_rank = layout == v1::LAYOUT_THD ? 3 : 4;
  if (shape.size() < full_rank) shape.insert(shape.begin() + AxesOf(layout).heads, 1);
  return shape;
}

}  // namespace

absl::Status UnknownEnumValue(const char* field, const char* type, int value) {
  return absl::UnimplementedError(StrCat(field, " is ", value, ", a ", type,
                                         " that is not known to this version: it needs a newer "
                                         "server"));
}

absl::StatusOr<Extents> ReadExtents(const v1::ComputeHeader& header, const FieldNames& names) {
  if (!v1::Layout_IsValid(header.layout())) {
    return UnknownEnumValue("layout", "Layout", header.layout());
  }
  if (absl::Status status = CheckPresent(header); !status.ok()) return status;
  absl::StatusOr<DType> dtype = ReadDType(header, names);
  if (!dtype.ok()) return dtype.status();

  Extents extents;
  extents.dtype = *dtype;
  if (header.layout() != v1::LAYOUT_UNSPECIFIED) extents.layout = header.layout();
  absl::Status status = CheckShapes(header, extents.layout, *dtype, names);
  if (!status.ok()) return status;

  const Axes axes = AxesOf(extents.layout);
  const std::vector<int64_t> q(header.q().shape().begin(), header.q().shape().end());
  const std::vector<int64_t> kv = FullKvShape(header.k(), extents.layout);
  extents.batch = extents.packed() ? 1 : q[axes.batch];
  extents.q_heads = q[axes.heads];
  extents.kv_heads = kv[axes.heads];
  extents.q_len = q[axes.len];
  extents.kv_len = kv[axes.len];
  extents.head_dim = q.back();
  if (!extents.packed() && kv[axes.batch] != extents.batch) {
    return InvalidArgumentError(Differ({names.q, header.q()}, {names.k, header.k()}, "batch"));
  }
  if (kv.back() != extents.head_dim) {
    return InvalidArgumentError(Differ({names.q, header.q()}, {names.k, header.k()}, "head_dim"));
  }
  return extents;
}

absl::Status CheckPayloadSizes(const v1::ComputeHeader& header, DType dtype,
                               const PayloadBytes& given, const FieldNames& names) {
  const struct {
    NamedSpec tensor;
    int64_t given_bytes;
  } payloads[] = {{{names.q, header.q()}, given.q},
                  {{names.k, header.k()}, given.k},
                  {{names.v, header.v()}, given.v}};
  for (const auto& payload : payloads) {
    int64_t wanted_bytes = 0;
    SizeBytesOf(payload.tensor.spec, kernels::SizeBytes(dtype), wanted_bytes);
    if (payload.tensor.spec.has_region() && payload.given_bytes > 0) {
      return InvalidArgumentError(StrCat(payload.tensor.name, " has ", payload.given_bytes,
                                         " bytes; it lies in a region, and needs 0 here"));
    }
    if (payload.tensor.spec.has_region()) continue;
    if (payload.given_bytes != wanted_bytes) {
      return InvalidArgumentError(
          StrCat(payload.tensor.name, " has ", payload.given_bytes, " bytes; ", payload.tensor.name,
                 ".shape ", ShapeOf(payload.tensor.spec), " of ",
                 DTypeOf(payload.tensor.spec, names), " needs ", wanted_bytes));
    }
  }
  return absl::OkStatus();
}

PayloadBytes SizesOf(const v1::ComputeHeader& header, DType dtype) {
  PayloadBytes sizes;
  SizeBytesOf(header.q(), kernels::SizeBytes(dtype), sizes.q);
  SizeBytesOf(header.k(), kernels::SizeBytes(dtype), sizes.k);
  SizeBytesOf(header.v(), kernels::SizeBytes(dtype), sizes.v);
  return sizes;
}

}  // namespace attnd::server::wire
