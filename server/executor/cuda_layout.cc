#include "server/executor/cuda_layout.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace attnd::server {
namespace {

using kernels::AttentionProblem;
using kernels::Strides;

constexpr int64_t kFloatBytes = sizeof(float);

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
int64_t CeilDiv(int64_t a, int64_t b) { return b == 0 ? a : (a + b - 1) / b; }

struct Axis {
  int64_t extent = 0;
  int64_t stride_rows = 0;
};

// Some rows of a tensor.
struct Box {
  int64_t first_row = 0;
  std::array<Axis, 3> axes;
};

enum class Direction { kToDevice, kToHost };

struct Copier {
  const TensorPlace& place;
  unsigned char* host;
  unsigned char* device;
  Direction direction;
  std::vector<CudaCopy>& copies;

  // `rows` rows of `row_bytes`, from row `first` on.
  void Append(int64_t first, int64_t row_bytes, int64_t rows, int64_t host_pitch_bytes,
              int64_t device_pitch_bytes) const {
    unsigned char* const on_host = host + first * place.row_bytes;
    unsigned char* const on_device = device + first * place.pitch_bytes;
    if (direction == Direction::kToDevice) {
      copies.push_back({on_device, device_pitch_bytes, on_host, host_pitch_bytes, row_bytes, rows});
    } else {
      copies.push_back({on_host, host_pitch_bytes, on_device, device_pitch_bytes, row_bytes, rows});
    }
  }

  void AppendRun(int64_t first, int64_t rows) const {
    if (rows == 0 || place.rows == 0) return;
    if (place.dense()) {
      Append(first, rows * place.row_bytes, 1, 0, 0);
    } else {
      Append(first, place.row_bytes, rows, place.row_bytes, place.pitch_bytes);
    }
  }

  void AppendAll() const { AppendRun(0, place.rows); }

  // In as few copies as the tensor's layout allows.
  void AppendBox(const Box& box) const {
    if (place.rows == 0) return;  // it lies there already
    std::vector<Axis> axes;
    for (const Axis& axis : box.axes) {
      if (axis.extent == 0) return;
      if (axis.extent > 1) axes.push_back(axis);
    }
    std::sort(axes.begin(), axes.end(),
              [](const Axis& a, const Axis& b) { return a.stride_rows < b.stride_rows; });
    int64_t run = 1;
    while (!axes.empty() && axes.front().stride_rows == run) {
      run *= axes.front().extent;
      axes.erase(axes.begin());
    }
    AppendOuter(box.first_row, run, axes);
  }

 private:
  void AppendOuter(int64_t first, int64_t run, absl::Span<const Axis> axes) const {
    if (axes.empty()) return AppendRun(first, run);
    if (axes.size() == 1 && place.dense()) {
      const int64_t pitch_bytes = axes[0].stride_rows * place.row_bytes;
      return Append(first, run * place.row_bytes, axes[0].extent, pitch_bytes, pitch_bytes);
    }
    const Axis outermost = axes.back();
    for (int64_t i = 0; i < outermost.extent; ++i) {
      AppendOuter(first + i * outermost.stride_rows, run, axes.first(axes.size() - 1));
    }
  }
};

// Elements [batch, heads, len] of a tensor with these strides, as rows of head_dim (or of 1, for
// LSE).
Box MakeBox(int64_t offset_elems, const Strides& strides, int64_t head_dim, int64_t batch_begin,
            int64_t batch, int64_t head_begin, int64_t heads, int64_t len) {
  Box box;
  box.first_row =
      (offset_elems + batch_begin * strides.batch + head_begin * strides.head) / head_dim;
  box.axes = {Axis{batch, strides.batch / head_dim}, Axis{heads, strides.head / head_dim},
              Axis{len, strides.row / head_dim}};
  return box;
}

// The part of the slot that the piece has.
struct Part {
  int64_t batch_begin;
  int64_t batch;
  int64_t kv_head_begin;
  int64_t kv_heads;
  int64_t q_head_begin;
  int64_t q_heads;
};

Part PartOf(const AttentionProblem& p, const Piece& piece) {
  if (piece.is_whole_slot) return {0, p.batch, 0, p.kv_heads, 0, p.q_heads};
  const int64_t kv_heads = piece.kv_head_end - piece.kv_head_begin;
  return {piece.batch_begin, piece.batch_end - piece.batch_begin, piece.kv_head_begin,
          kv_heads,          piece.kv_head_begin * p.group(),     kv_heads * p.group()};
}

// One past the last row of the tensor that the slot has.
int64_t EndRow(int64_t offset_elems, const Strides& s, int64_t head_dim, int64_t batch,
               int64_t heads, int64_t len) {
  if (batch == 0 || heads == 0 || len == 0) return offset_elems / head_dim;
  return (offset_elems + (batch - 1) * s.batch + (heads - 1) * s.head + (len - 1) * s.row) /
             head_dim +
         1;
}

int64_t RowBytes(const AttentionProblem& p) { return p.head_dim * SizeBytes(p.dtype); }
int64_t UnitBytes(const AttentionProblem& p) {
  return 2 * (p.group() * p.q_len + p.kv_len) * RowBytes(p);
}

// Whether some heads of a tensor can be copied in few pieces.
bool HeadsCanBeCut(const ProblemSlot& slot) {
  if (RowBytes(slot.problem) % kRowAlignmentBytes == 0) return true;
  return slot.q_strides.head >= slot.q_strides.row && slot.k_strides.head >= slot.k_strides.row;
}

class Cutter {
 public:
  explicit Cutter(const SliceSize& size) : size_(size) {}

  void AddRequest(int number, const Request& request) {
    const auto slots = static_cast<int64_t>(request.problems.size());
    const int64_t copied_bytes =
        request.payload_bytes() + request.answer_bytes() - request.gpu.size_bytes;
    if (copied_bytes < 2 * size_.bytes) {
      int64_t rows = 0;
      for (const ProblemSlot& slot : request.problems) rows += QueryRows(slot.problem);
      Add({number, 0, slots, true}, copied_bytes, rows);
      return;
    }
    for (int64_t s = 0; s < slots; ++s) AddSlot(number, s, request.problems[s]);
  }

  std::vector<Slice> Take() {
    Close();
    return std::move(slices_);
  }

 private:
  static int64_t QueryRows(const AttentionProblem& p) { return p.batch * p.q_heads * p.q_len; }

  void AddSlot(int number, int64_t s, const ProblemSlot& slot) {
    const AttentionProblem& p = slot.problem;
    const int64_t units = p.batch * p.kv_heads;
    const int64_t wanted =
        std::max(CeilDiv(size_.bytes, std::max<int64_t>(UnitBytes(p), 1)),
                 CeilDiv(size_.query_rows, p.kv_heads * p.q_len == 0 ? 0 : p.group() * p.q_len));
    if (p.empty() || units < 2 * wanted) {
      const int64_t bytes = p.kv_heads == 0 ? 0 : units * UnitBytes(p);
      return AddWholeSlot({number, s, s + 1}, bytes, QueryRows(p));
    }
    const bool cut_heads = wanted < p.kv_heads && HeadsCanBeCut(slot);
    const int64_t heads = cut_heads ? wanted : p.kv_heads;
    const int64_t batches = cut_heads ? 1 : std::max<int64_t>(1, wanted / p.kv_heads);
    for (int64_t b = 0; b < p.batch; b += batches) {
      for (int64_t h = 0; h < p.kv_heads; h += heads) {
        const Piece piece = {number,
                             s,
                             s + 1,
                             false,
                             false,
                             b,
                             std::min(b + batches, p.batch),
                             h,
                             std::min(h + heads, p.kv_heads)};
        const int64_t n = (piece.batch_end - b) * (piece.kv_head_end - h);
        Add(piece, n * UnitBytes(p), n * p.group() * p.q_len);
      }
    }
  }

  // Joined with the slot before it, which is its neighbour in memory.
  void AddWholeSlot(const Piece& piece, int64_t bytes, int64_t rows) {
    if (!slice_.empty() && slice_.back().request == piece.request && slice_.back().is_whole_slot &&
        slice_.back().slot_end == piece.slot_begin) {
      const Piece joined = {piece.request, slice_.back().slot_begin, piece.slot_end};
      slice_.pop_back();
      return Add(joined, bytes, rows);
    }
    Add(piece, bytes, rows);
  }

  void Add(const Piece& piece, int64_t bytes, int64_t rows) {
    slice_.push_back(piece);
    bytes_ += bytes;
    rows_ += rows;
    if (bytes_ >= size_.bytes && rows_ >= size_.query_rows) Close();
  }

  void Close() {
    if (!slice_.empty()) slices_.push_back(std::move(slice_));
    slice_.clear();
    bytes_ = rows_ = 0;
  }

  const SliceSize size_;
  std::vector<Slice> slices_;
  Slice slice_;
  int64_t bytes_ = 0;
  int64_t rows_ = 0;
};

}  // namespace

RequestPlace PlaceRequest(const Request& request) {
  RequestPlace place;
  if (request.problems.empty()) return place;
  const AttentionProblem& p = request.problems[0].problem;
  const int64_t row_bytes = RowBytes(p);
  int64_t end = 0;
  const auto put = [&end](TensorPlace& tensor, int64_t bytes, int64_t row, int64_t pitch,
                          bool is_there = false) {
    if (is_there) bytes = 0;
    tensor = {end, bytes / row, row, is_there ? row : pitch};
    end = RoundUp(end + tensor.device_bytes(), kDeviceAlignmentBytes);
  };
  const int64_t pitch = RoundUp(row_bytes, kRowAlignmentBytes);
  put(place.q, request.q.size_bytes(), row_bytes, pitch, request.gpu.q);
  put(place.k, request.k.size_bytes(), row_bytes, pitch, request.gpu.k);
  put(place.v, request.v.size_bytes(), row_bytes, pitch, request.gpu.v);
  put(place.slopes, static_cast<int64_t>(request.alibi_slopes.size()) * kFloatBytes, kFloatBytes,
      kFloatBytes);
  put(place.o, request.output.o_bytes, row_bytes, pitch, request.gpu.o);
  put(place.lse, request.output.want_lse ? request.output.lse_bytes : 0, kFloatBytes, kFloatBytes,
      request.gpu.lse);
  place.size_bytes = end;
  return place;
}

TensorBases BasesIn(unsigned char* block, const RequestPlace& place) {
  return {block + place.q.offset_bytes, block + place.k.offset_bytes,
          block + place.v.offset_bytes, block + place.slopes.offset_bytes,
          block + place.o.offset_bytes, block + place.lse.offset_bytes};
}

TensorBases BasesOnHost(const Request& request, const Buffer& o, const Buffer& lse) {
  TensorBases bases = {request.q.data(), request.k.data(), request.v.data(),
                       nullptr,          o.data(),         lse.data()};
  // Only read, as are q, k and v.
  bases.slopes = reinterpret_cast<unsigned char*>(const_cast<float*>(request.alibi_slopes.data()));
  return bases;
}

void UseInPlace(const GpuTensors& tensors, const TensorBases& host, TensorBases& device) {
  if (tensors.q) device.q = host.q;
  if (tensors.k) device.k = host.k;
  if (tensors.v) device.v = host.v;
  if (tensors.o) device.o = host.o;
  if (tensors.lse) device.lse = host.lse;
}

std::vector<Slice> CutIntoSlices(absl::Span<const Request* const> requests, const SliceSize& size) {
  Cutter cutter(size);
  for (size_t i = 0; i < requests.size(); ++i) {
    cutter.AddRequest(static_cast<int>(i), *requests[i]);
  }
  return cutter.Take();
}

void AppendUploads(const Request& request, const RequestPlace& place, const Piece& piece,
                   const TensorBases& host, const TensorBases& device,
                   std::vector<CudaCopy>& copies) {
  const Copier q{place.q, host.q, device.q, Direction::kToDevice, copies};
  const Copier k{place.k, host.k, device.k, Direction::kToDevice, copies};
  const Copier v{place.v, host.v, device.v, Direction::kToDevice, copies};
  if (piece.is_whole_request) {
    for (const Copier* tensor : {&q, &k, &v}) tensor->AppendAll();
    return;
  }
  const ProblemSlot& first = request.problems[piece.slot_begin];
  const AttentionProblem& p = first.problem;
  if (piece.slot_end - piece.slot_begin == 1) {
    const Part part = PartOf(p, piece);
    q.AppendBox(MakeBox(first.q_offset_elems, first.q_strides, p.head_dim, part.batch_begin,
                        part.batch, part.q_head_begin, part.q_heads, p.q_len));
    k.AppendBox(MakeBox(first.k_offset_elems, first.k_strides, p.head_dim, part.batch_begin,
                        part.batch, part.kv_head_begin, part.kv_heads, p.kv_len));
    v.AppendBox(MakeBox(first.v_offset_elems, first.v_strides, p.head_dim, part.batch_begin,
                        part.batch, part.kv_head_begin, part.kv_heads, p.kv_len));
    return;
  }
  const ProblemSlot& last = request.problems[piece.slot_end - 1];
  const AttentionProblem& l = last.problem;
  const auto append_range = [&](const Copier& to, int64_t begin_elems, int64_t end_row) {
    const int64_t begin = begin_elems / p.head_dim;
    to.AppendRun(begin, end_row - begin);
  };
  append_range(
      q, first.q_offset_elems,
      EndRow(last.q_offset_elems, last.q_strides, p.head_dim, l.batch, l.q_heads, l.q_len));
  append_range(
      k, first.k_offset_elems,
      EndRow(last.k_offset_elems, last.k_strides, p.head_dim, l.batch, l.kv_heads, l.kv_len));
  append_range(
      v, first.v_offset_elems,
      EndRow(last.v_offset_elems, last.v_strides, p.head_dim, l.batch, l.kv_heads, l.kv_len));
}

void AppendDownloads(const Request& request, const RequestPlace& place, const Piece& piece,
                     const TensorBases& host, const TensorBases& device,
                     std::vector<CudaCopy>& copies) {
  const Copier o{place.o, host.o, device.o, Direction::kToHost, copies};
  const Copier lse{place.lse, host.lse, device.lse, Direction::kToHost, copies};
  const bool want_lse = place.lse.rows > 0;
  if (piece.is_whole_request) {
    o.AppendAll();
    if (want_lse) lse.AppendAll();
    return;
  }
  const ProblemSlot& first = request.problems[piece.slot_begin];
  const AttentionProblem& p = first.problem;
  const Strides lse_strides = {first.lse_batch_stride, first.lse_head_stride, 1};
  if (piece.slot_end - piece.slot_begin == 1) {
    const Part part = PartOf(p, piece);
    o.AppendBox(MakeBox(first.o_offset_elems, first.o_strides, p.head_dim, part.batch_begin,
                        part.batch, part.q_head_begin, part.q_heads, p.q_len));
    if (want_lse) {
      lse.AppendBox(MakeBox(first.lse_offset_elems, lse_strides, 1, part.batch_begin, part.batch,
                            part.q_head_begin, part.q_heads, p.q_len));
    }
    return;
  }
  const ProblemSlot& last = request.problems[piece.slot_end - 1];
  const AttentionProblem& l = last.problem;
  const int64_t begin = first.o_offset_elems / p.head_dim;
  o.AppendRun(
      begin,
      EndRow(last.o_offset_elems, last.o_strides, p.head_dim, l.batch, l.q_heads, l.q_len) - begin);
  if (want_lse) {
    const int64_t len = last.lse_offset_elems + l.q_len - first.lse_offset_elems;
    lse.AppendBox(MakeBox(first.lse_offset_elems, lse_strides, 1, 0, p.batch, 0, p.q_heads, len));
  }
}

void AppendTasks(const Request& request, const RequestPlace& place, const Piece& piece,
                 const TensorBases& device, absl::Span<const kernels::KernelPlan> plans,
                 std::vector<kernels::AttentionTask>& tasks) {
  for (int64_t s = piece.slot_begin; s < piece.slot_end; ++s) {
    const ProblemSlot& slot = request.problems[s];
    const Part part = PartOf(slot.problem, piece);
    const int64_t element_bytes = SizeBytes(slot.problem.dtype);
    const auto to_device = [&](const TensorPlace& tensor, int64_t elems) {
      return elems / slot.problem.head_dim * (tensor.pitch_bytes / element_bytes);
    };
    const auto strides = [&](const TensorPlace& tensor, const Strides& s) {
      return Strides{to_device(tensor, s.batch), to_device(tensor, s.head),
                     to_device(tensor, s.row)};
    };
    const auto address = [&](const TensorPlace& tensor, unsigned char* base, int64_t offset,
                             const Strides& s, int64_t head) {
      if (base == nullptr) return base;  // a caller's own tensor without elements
      const int64_t elems = offset + part.batch_begin * s.batch + head * s.head;
      return base + to_device(tensor, elems) * element_bytes;
    };
    kernels::AttentionTask task = {slot.problem, plans[s], {}};
    task.problem.batch = part.batch;
    task.problem.q_heads = part.q_heads;
    task.problem.kv_heads = part.kv_heads;
    kernels::AttentionArgs& args = task.args;
    args.q = address(place.q, device.q, slot.q_offset_elems, slot.q_strides, part.q_head_begin);
    args.k = address(place.k, device.k, slot.k_offset_elems, slot.k_strides, part.kv_head_begin);
    args.v = address(place.v, device.v, slot.v_offset_elems, slot.v_strides, part.kv_head_begin);
    args.o = address(place.o, device.o, slot.o_offset_elems, slot.o_strides, part.q_head_begin);
    args.q_strides = strides(place.q, slot.q_strides);
    args.k_strides = strides(place.k, slot.k_strides);
    args.v_strides = strides(place.v, slot.v_strides);
    args.o_strides = strides(place.o, slot.o_strides);
    if (place.lse.rows > 0 || request.gpu.lse) {
      args.lse = reinterpret_cast<float*>(device.lse) + slot.lse_offset_elems +
                 part.batch_begin * slot.lse_batch_stride +
                 part.q_head_begin * slot.lse_head_stride;
      args.lse_batch_stride = slot.lse_batch_stride;
      args.lse_head_stride = slot.lse_head_stride;
    }
    if (slot.problem.alibi) {
      args.alibi_slopes = reinterpret_cast<const float*>(device.slopes) + part.q_head_begin;
    }
    tasks.push_back(std::move(task));
  }
}

}  // namespace attnd::server
