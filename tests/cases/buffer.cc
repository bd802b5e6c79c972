#include "tests/cases/buffer.h"

#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/cases/values.h"

namespace attnd::testing {

using kernels::DType;

namespace {

// More than any vector, tile row or prefetch distance that a kernel may overrun by mistake.
constexpr int64_t kGuardElems = 1024;

// NaNs with a payload that arithmetic does not produce.
uint32_t SentinelBits(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x7fa5a5a5;
    case DType::kF16:
      return 0x7da5;
    case DType::kBF16:
      return 0x7fa5;
  }
  return 0;
}

// Elements added to a row's, a head's and a batch's stride, and to the base.
struct Gaps {
  int64_t inner = 0;
  int64_t middle = 0;
  int64_t outer = 0;
  int64_t guard = 0;
};

Gaps GapsOf(Placement placement) {
  switch (placement) {
    case Placement::kSnug:
      return {};
    case Placement::kOddNaN:
      return {3, 5, 7, kGuardElems + 1};
    case Placement::kOddLarge:
      return {1, 9, 2, kGuardElems + 3};
  }
  return {};
}

kernels::Strides StridesOf(Layout layout, const Extents& e, const Gaps& gaps) {
  const int64_t inner = e.head_dim + gaps.inner;
  const int64_t middle = (layout == Layout::kBHSD ? e.len : e.heads) * inner + gaps.middle;
  const int64_t outer = (layout == Layout::kBHSD ? e.heads : e.len) * middle + gaps.outer;
  if (layout == Layout::kBHSD) return {.batch = outer, .head = middle, .row = inner};
  return {.batch = outer, .head = inner, .row = middle};
}

}  // namespace

const char* PlacementName(Placement placement) {
  switch (placement) {
    case Placement::kSnug:
      return "snug";
    case Placement::kOddNaN:
      return "odd_nan";
    case Placement::kOddLarge:
      return "odd_large";
  }
  return "?";
}

Buffer::Buffer(DType dtype, Layout layout, Placement placement, const std::vector<Extents>& extents,
               uint64_t seed)
    : dtype_(dtype) {
  const Gaps gaps = GapsOf(placement);
  int64_t next = gaps.guard;
  int64_t end = next;
  for (const Extents& e : extents) {
    const Region region{e, next, StridesOf(layout, e, gaps)};
    regions_.push_back(region);
    if (e.batch > 0 && e.heads > 0 && e.len > 0) {
      end = region.Element(e.batch - 1, e.heads - 1, e.len - 1, e.head_dim - 1) + 1;
    }
    // Packed sequences lie token beside token.
    next += e.len * region.strides.row;
  }
  bytes_ = std::vector<unsigned char>((end + gaps.guard) * SizeBytes(dtype));
  if (placement != Placement::kSnug) FillWithPoison(placement, seed);
}

void* Buffer::data(size_t i) {
  if (bytes_.empty()) return nullptr;
  return bytes_.data() + regions_[i].offset_elems * SizeBytes(dtype_);
}

int64_t Buffer::size_elems() const {
  return static_cast<int64_t>(bytes_.size()) / SizeBytes(dtype_);
}

uint32_t Buffer::Bits(int64_t element) const {
  uint32_t bits = 0;
  std::memcpy(&bits, bytes_.data() + element * SizeBytes(dtype_), SizeBytes(dtype_));
  return bits;
}

void Buffer::SetBits(int64_t element, uint32_t bits) {
  std::memcpy(bytes_.data() + element * SizeBytes(dtype_), &bits, SizeBytes(dtype_));
}

template <typename Visit>
void Buffer::ForEach(size_t i, Visit visit) const {
  const Region& region = regions_[i];
  const Extents& e = region.extents;
  for (int64_t batch = 0; batch < e.batch; ++batch) {
    for (int64_t head = 0; head < e.heads; ++head) {
      for (int64_t row = 0; row < e.len; ++row) {
        const int64_t first = region.Element(batch, head, row, 0);
        for (int64_t d = 0; d < e.head_dim; ++d) visit(first + d);
      }
    }
  }
}

void Buffer::FillWithPoison(Placement placement, uint64_t seed) {
  Random random(seed);
  const int64_t count = size_elems();
  for (int64_t i = 0; i < count; ++i) {
    float poison = std::numeric_limits<float>::quiet_NaN();
    if (placement == Placement::kOddLarge) {
      // Within fp16's range, and so large that one stray element shows in any result.
      const uint64_t bits = random.Next();
      poison = static_cast<float>(1000 + bits % 60000) * (bits >> 63 ? -1.0f : 1.0f);
    }
    kernels::StoreElement(bytes_.data(), i, dtype_, poison);
  }
}

void Buffer::SetRegion(size_t i, const std::vector<float>& values) {
  const float* value = values.data();
  ForEach(
      i, [&](int64_t element) { kernels::StoreElement(bytes_.data(), element, dtype_, *value++); });
}

void Buffer::SetRegion(size_t i, float value) {
  ForEach(i,
          [&](int64_t element) { kernels::StoreElement(bytes_.data(), element, dtype_, value); });
}

void Buffer::Set(size_t i, int64_t batch, int64_t head, int64_t row, int64_t d, float value) {
  kernels::StoreElement(bytes_.data(), regions_[i].Element(batch, head, row, d), dtype_, value);
}

std::vector<double> Buffer::Get(size_t i) const {
  std::vector<double> values;
  ForEach(i, [&](int64_t element) {
    values.push_back(kernels::LoadElement(bytes_.data(), element, dtype_));
  });
  return values;
}

std::vector<unsigned char> Buffer::GetBits(size_t i) const {
  std::vector<unsigned char> bits;
  const int64_t size_bytes = SizeBytes(dtype_);
  ForEach(i, [&](int64_t element) {
    const unsigned char* first = bytes_.data() + element * size_bytes;
    bits.insert(bits.end(), first, first + size_bytes);
  });
  return bits;
}

void Buffer::FillWithSentinel() {
  const uint32_t sentinel = SentinelBits(dtype_);
  const int64_t count = size_elems();
  for (int64_t i = 0; i < count; ++i) SetBits(i, sentinel);
  frozen_.clear();
}

std::string Buffer::Check(int only_region) const {
  if (!frozen_.empty()) {
    if (bytes_ == frozen_) return "";
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (bytes_[i] != frozen_[i]) return absl::StrCat("an input's byte ", i, " was written");
    }
  }
  const int64_t count = size_elems();
  std::vector<char> inside(count);
  for (size_t i = 0; i < regions_.size(); ++i) {
    if (only_region >= 0 && i != static_cast<size_t>(only_region)) continue;
    ForEach(i, [&](int64_t element) { inside[element] = true; });
  }
  const uint32_t sentinel = SentinelBits(dtype_);
  for (int64_t i = 0; i < count; ++i) {
    const bool untouched = Bits(i) == sentinel;
    if (inside[i] && untouched) return absl::StrCat("output element ", i, " was never written");
    if (!inside[i] && !untouched) {
      return absl::StrCat("element ", i, ", outside the output, was written");
    }
  }
  return "";
}

}  // namespace attnd::testing
