// Rows on their way between the caller's tensors and fp32 scratch: any dtype, any alignment, never
// a byte outside the row. Included by the kernel's translation units alone.
#ifndef ATTND_KERNELS_CPU_FLASH_ROWS_H_
#define ATTND_KERNELS_CPU_FLASH_ROWS_H_

#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu {
namespace {

// How one element type is stored and converted.
template <Element element>
struct Stored;
template <>
struct Stored<Element::kF32> {
  static constexpr int64_t kBytes = 4;
  using Vector = F32;
  ATTND_CPU_INLINE static F32 Load(Vector bits) { return bits; }
  ATTND_CPU_INLINE static Vector Store(F32 value) { return value; }
};
template <>
struct Stored<Element::kF16> {
  static constexpr int64_t kBytes = 2;
  using Vector = U16;
  ATTND_CPU_INLINE static F32 Load(Vector bits) { return FromF16(bits); }
  ATTND_CPU_INLINE static Vector Store(F32 value) { return ToF16(value); }
};
template <>
struct Stored<Element::kBF16> {
  static constexpr int64_t kBytes = 2;
  using Vector = U16;
  ATTND_CPU_INLINE static F32 Load(Vector bits) { return FromBF16(bits); }
  ATTND_CPU_INLINE static Vector Store(F32 value) { return ToBF16(value); }
};

template <Element element>
void LoadRowOf(const unsigned char* from, int64_t count, float* to) {
  using S = Stored<element>;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto bits = LoadVector<typename S::Vector>(from + i * S::kBytes);
    StoreVector(to + i, S::Load(bits));
  }
  if (i < count) {
    typename S::Vector bits{};
    __builtin_memcpy(&bits, from + i * S::kBytes, (count - i) * S::kBytes);
    StoreVector(to + i, S::Load(bits));
  }
}

template <Element element>
void StoreRowOf(const float* from, int64_t count, unsigned char* to) {
  using S = Stored<element>;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    StoreVector(to + i * S::kBytes, S::Store(LoadVector<F32>(from + i)));
  }
  if (i < count) {
    const typename S::Vector bits = S::Store(LoadVector<F32>(from + i));
    __builtin_memcpy(to + i * S::kBytes, &bits, (count - i) * S::kBytes);
  }
}

// `to` gets `count` floats, then zeros up to a whole vector.
ATTND_CPU_INLINE void LoadRow(Element element, const void* from, int64_t count, float* to) {
  const unsigned char* bytes = static_cast<const unsigned char*>(from);
  switch (element) {
    case Element::kF32:
      return LoadRowOf<Element::kF32>(bytes, count, to);
    case Element::kF16:
      return LoadRowOf<Element::kF16>(bytes, count, to);
    case Element::kBF16:
      return LoadRowOf<Element::kBF16>(bytes, count, to);
  }
}

// `from` is readable up to a whole vector.
ATTND_CPU_INLINE void StoreRow(Element element, const float* from, int64_t count,
                               unsigned char* to) {
  switch (element) {
    case Element::kF32:
      return StoreRowOf<Element::kF32>(from, count, to);
    case Element::kF16:
      return StoreRowOf<Element::kF16>(from, count, to);
    case Element::kBF16:
      return StoreRowOf<Element::kBF16>(from, count, to);
  }
}

}  // namespace
}  // namespace attnd::kernels::cpu
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_FLASH_ROWS_H_
