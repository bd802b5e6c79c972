#include "server/wire/region_tensors.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attnd::server::wire {
namespace {

using absl::InvalidArgumentError;
using absl::StrCat;
using google::protobuf::RepeatedField;
using kernels::Strides;

using Extent = std::vector<int64_t>;

struct Tensor {
  const char* name;
  Extent shape;
  const RepeatedField<int64_t>& strides_elems;
  const v1::RegionRange& region;
  int64_t element_bytes;
  Access access;
};

std::string Text(const RepeatedField<int64_t>& values) {
  return StrCat("[", absl::StrJoin(values, ", "), "]");
}

std::vector<int64_t> DenseStrides(const Extent& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

absl::Status CheckStrides(const Tensor& tensor) {
  const RepeatedField<int64_t>& strides = tensor.strides_elems;
  if (strides.size() != static_cast<int>(tensor.shape.size())) {
    return InvalidArgumentError(StrCat(tensor.name, ".strides_elems has ", strides.size(),
                                       " entries, ", Text(strides), "; its shape has ",
                                       tensor.shape.size(), " axes"));
  }
  for (int axis = 0; axis < strides.size(); ++axis) {
    if (strides[axis] >= 0) continue;
    return InvalidArgumentError(StrCat(tensor.name, ".strides_elems[", axis, "] is ", strides[axis],
                                       "; it must be at least 0"));
  }
  if (strides.size() > 0 && strides[strides.size() - 1] != 1) {
    return InvalidArgumentError(
        StrCat(tensor.name, ".strides_elems is ", Text(strides), "; its last entry must be 1"));
  }
  return absl::OkStatus();
}

// Axes that have a next index, the innermost first.
std::vector<std::pair<int64_t, int64_t>> ByStride(const RegionTensor& tensor, const Extent& shape) {
  std::vector<std::pair<int64_t, int64_t>> axes;  // stride, extent
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] > 1) axes.emplace_back(tensor.strides_elems[axis], shape[axis]);
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

// Whether it has neither gaps nor elements in one place: it is dense in some order of its axes.
bool IsDense(const RegionTensor& tensor, const Extent& shape) {
  int64_t expected = 1;
  for (const auto& [stride, extent] : ByStride(tensor, shape)) {
    if (stride != expected) return false;
    expected *= extent;
  }
  return true;
}

// Whether each axis steps over all that lies within those further in: no two elements are one then.
bool IsApart(const RegionTensor& tensor, const Extent& shape) {
  int64_t reach = 1;
  for (const auto& [stride, extent] : ByStride(tensor, shape)) {
    if (stride < reach) return false;
    reach += (extent - 1) * stride;
  }
  return true;
}

// False if it overflows. An axis without a next index takes the dense stride, whatever was given.
bool Place(const Tensor& tensor, RegionTensor& placed) {
  // Without elements it has no strides; dense ones might overflow.
  placed.strides_elems.assign(tensor.shape.size(), 0);
  if (std::count(tensor.shape.begin(), tensor.shape.end(), 0) > 0) return true;
  placed.strides_elems = DenseStrides(tensor.shape);
  int64_t span_elems = 1;
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    int64_t& stride = placed.strides_elems[axis];
    if (!tensor.strides_elems.empty() && tensor.shape[axis] > 1) {
      stride = tensor.strides_elems[static_cast<int>(axis)];
    }
    int64_t reach = 0;
    if (__builtin_mul_overflow(tensor.shape[axis] - 1, stride, &reach) ||
        __builtin_add_overflow(span_elems, reach, &span_elems)) {
      return false;
    }
  }
  return !__builtin_mul_overflow(span_elems, tensor.element_bytes, &placed.span_bytes);
}

absl::Status CheckRange(const Tensor& tensor) {
  const v1::RegionRange& region = tensor.region;
  if (region.handle().size() != sizeof(RegionHandle)) {
    return InvalidArgumentError(StrCat(tensor.name, ".region.handle has ", region.handle().size(),
                                       " bytes; a region's has ", sizeof(RegionHandle)));
  }
  if (region.offset_bytes() < 0 || region.offset_bytes() % tensor.element_bytes != 0) {
    return InvalidArgumentError(StrCat(tensor.name, ".region.offset_bytes is ",
                                       region.offset_bytes(), "; it must be a multiple of ",
                                       tensor.element_bytes, ", the element's size, and >= 0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RegionTensor> ReadOne(const Tensor& tensor, const Limits& limits) {
  if (!limits.takes_regions) {
    return absl::UnimplementedError(
        StrCat(tensor.name, " is to lie in a memory region; it needs a server with a side socket"));
  }
  absl::Status status = CheckRange(tensor);
  if (status.ok() && !tensor.strides_elems.empty()) status = CheckStrides(tensor);
  if (!status.ok()) return status;
  RegionTensor placed;
  placed.name = tensor.name;
  std::copy(tensor.region.handle().begin(), tensor.region.handle().end(), placed.handle.begin());
  placed.offset_bytes = tensor.region.offset_bytes();
  if (!Place(tensor, placed)) {
    return InvalidArgumentError(StrCat(tensor.name, ".strides_elems is ",
                                       Text(tensor.strides_elems),
                                       "; the tensor's reach in bytes overflows 64 bits"));
  }
  if (placed.span_bytes == 0) return placed;
  if (tensor.access == Access::kWrite && !IsApart(placed, tensor.shape)) {
    return InvalidArgumentError(StrCat(tensor.name, ".strides_elems is ",
                                       Text(tensor.strides_elems),
                                       "; elements of an output must lie apart"));
  }
  if (!limits.region_gaps && !IsDense(placed, tensor.shape)) {
    return absl::UnimplementedError(
        StrCat(tensor.name, ".strides_elems is ", Text(tensor.strides_elems),
               ", which has gaps; they need a server that computes on a CPU"));
  }
  return placed;
}

Extent ShapeOf(const v1::TensorSpec& spec) { return {spec.shape().begin(), spec.shape().end()}; }

Extent LseShape(const Extents& extents) {
  if (extents.packed()) return {extents.q_heads, extents.q_len};
  return {extents.batch, extents.q_heads, extents.q_len};
}

// As a tensor's shape has its axes; without one of heads there is one head.
Strides ToStrides(const std::vector<int64_t>& strides, v1::Layout layout) {
  const bool is_packed = layout == v1::LAYOUT_THD;
  const bool has_heads = strides.size() == (is_packed ? 3 : 4);
  if (is_packed) return {0, has_heads ? strides[1] : 0, strides[0]};
  if (!has_heads) return {strides[0], 0, strides[1]};
  if (layout == v1::LAYOUT_BSHD) return {strides[0], strides[2], strides[1]};
  return {strides[0], strides[1], strides[2]};
}

// Notes that the tensor stays where it is, if that is a GPU.
absl::Status NoteGpu(const RegionTensor& tensor, const RegionLease& lease, GpuTensors& gpu,
                     bool& is_there) {
  const GpuMemory* const memory = lease.gpu();
  if (memory == nullptr) return absl::OkStatus();
  if (gpu.device != GpuTensors::kNoDevice && gpu.device != memory->device()) {
    return InvalidArgumentError(StrCat(tensor.name, " lies on the server's device ",
                                       memory->device(), ", another tensor on device ", gpu.device,
                                       "; they must lie on one"));
  }
  gpu.device = memory->device();
  gpu.size_bytes += lease.size_bytes();
  is_there = true;
  void* const ready = memory->ready();
  if (ready != nullptr && std::count(gpu.ready.begin(), gpu.ready.end(), ready) == 0) {
    gpu.ready.push_back(ready);
  }
  return absl::OkStatus();
}

absl::Status LeaseOne(const RegionTensor& tensor, Access access, RegionTable& table,
                      Request& request, bool& is_on_gpu, unsigned char** data) {
  absl::StatusOr<RegionLease> lease =
      table.Pin(tensor.handle, tensor.offset_bytes, tensor.span_bytes, access);
  if (!lease.ok()) {
    const bool is_full = absl::IsResourceExhausted(lease.status());
    return absl::Status(is_full ? absl::StatusCode::kUnavailable : lease.status().code(),
                        StrCat(tensor.name, ": ", lease.status().message()));
  }
  *data = lease->data();
  absl::Status status = NoteGpu(tensor, *lease, request.gpu, is_on_gpu);
  request.leases->Add(*std::move(lease));
  return status;
}

}  // namespace

bool NamesRegions(const v1::ComputeHeader& header) {
  return header.q().has_region() || header.k().has_region() || header.v().has_region() ||
         header.has_o_destination() || header.has_lse_destination();
}

absl::StatusOr<RegionTensors> ReadRegionTensors(const v1::ComputeHeader& header,
                                                const Extents& extents, const Limits& limits) {
  RegionTensors tensors;
  const int64_t element_bytes = kernels::SizeBytes(extents.dtype);
  const struct {
    const char* name;
    const v1::TensorSpec& spec;
    absl::optional<RegionTensor>& to;
  } inputs[] = {
      {"q", header.q(), tensors.q}, {"k", header.k(), tensors.k}, {"v", header.v(), tensors.v}};
  for (const auto& input : inputs) {
    if (!input.spec.has_region()) {
      if (input.spec.strides_elems().empty()) continue;
      return InvalidArgumentError(StrCat(input.name, ".strides_elems is ",
                                         Text(input.spec.strides_elems()), ", and ", input.name,
                                         ".region is missing; only tensors in regions have any"));
    }
    auto read = ReadOne({input.name, ShapeOf(input.spec), input.spec.strides_elems(),
                         input.spec.region(), element_bytes, Access::kRead},
                        limits);
    if (!read.ok()) return read.status();
    input.to = *std::move(read);
  }
  if (header.has_lse_destination() && !header.want_lse()) {
    return InvalidArgumentError("lse_destination is given, and want_lse is false");
  }
  const struct {
    const char* name;
    bool is_there;
    const v1::Destination& destination;
    Extent shape;
    int64_t element_bytes;
    absl::optional<RegionTensor>& to;
  } outputs[] = {{"o_destination", header.has_o_destination(), header.o_destination(),
                  ShapeOf(header.q()), element_bytes, tensors.o},
                 {"lse_destination", header.has_lse_destination(), header.lse_destination(),
                  LseShape(extents), sizeof(float), tensors.lse}};
  for (const auto& output : outputs) {
    if (!output.is_there) continue;
    auto read = ReadOne({output.name, output.shape, output.destination.strides_elems(),
                         output.destination.region(), output.element_bytes, Access::kWrite},
                        limits);
    if (!read.ok()) return read.status();
    output.to = *std::move(read);
  }
  return tensors;
}

void PlaceInRegions(const RegionTensors& tensors, const v1::ComputeHeader& header,
                    const Extents& extents, std::vector<ProblemSlot>& slots) {
  const bool is_packed = extents.packed();
  for (size_t i = 0; i < slots.size(); ++i) {
    ProblemSlot& slot = slots[i];
    const int64_t q_begin = is_packed ? header.cu_seqlens_q(static_cast<int>(i)) : 0;
    const int64_t kv_begin = is_packed ? header.cu_seqlens_kv(static_cast<int>(i)) : 0;
    const auto put = [&](const absl::optional<RegionTensor>& tensor, int64_t begin,
                         Strides& strides, int64_t& offset_elems) {
      if (!tensor) return;
      strides = ToStrides(tensor->strides_elems, extents.layout);
      offset_elems = begin * strides.row;
    };
    put(tensors.q, q_begin, slot.q_strides, slot.q_offset_elems);
    put(tensors.k, kv_begin, slot.k_strides, slot.k_offset_elems);
    put(tensors.v, kv_begin, slot.v_strides, slot.v_offset_elems);
    put(tensors.o, q_begin, slot.o_strides, slot.o_offset_elems);
    if (!tensors.lse) continue;
    const std::vector<int64_t>& lse = tensors.lse->strides_elems;
    slot.lse_batch_stride = is_packed ? 0 : lse[0];
    slot.lse_head_stride = lse[lse.size() - 2];
  }
}

absl::Status LeaseRegions(const v1::ComputeHeader& header, const Limits& limits, RegionTable& table,
                          Request& request) {
  const absl::StatusOr<Extents> extents = ReadExtents(header);
  if (!extents.ok()) return extents.status();
  const absl::StatusOr<RegionTensors> tensors = ReadRegionTensors(header, *extents, limits);
  if (!tensors.ok()) return tensors.status();
  request.leases = std::make_unique<RegionLeases>();
  GpuTensors& gpu = request.gpu;
  const struct {
    const absl::optional<RegionTensor>& tensor;
    bool& is_on_gpu;
    Buffer& to;
  } inputs[] = {{tensors->q, gpu.q, request.q},
                {tensors->k, gpu.k, request.k},
                {tensors->v, gpu.v, request.v}};
  for (const auto& input : inputs) {
    if (!input.tensor) continue;
    unsigned char* data = nullptr;
    absl::Status status =
        LeaseOne(*input.tensor, Access::kRead, table, request, input.is_on_gpu, &data);
    if (!status.ok()) return status;
    input.to = Buffer::Lend(data, input.tensor->span_bytes);
    request.leased_input_bytes += input.tensor->span_bytes;
  }
  const struct {
    const absl::optional<RegionTensor>& tensor;
    bool& is_on_gpu;
    unsigned char*& to;
  } outputs[] = {{tensors->o, gpu.o, request.output.o_place},
                 {tensors->lse, gpu.lse, request.output.lse_place}};
  for (const auto& output : outputs) {
    if (!output.tensor) continue;
    absl::Status status =
        LeaseOne(*output.tensor, Access::kWrite, table, request, output.is_on_gpu, &output.to);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace attnd::server::wire
