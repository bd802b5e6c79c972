// Rows on their way between the caller's tensors and fp32 scratch: any dtype, any alignment, never
// a byte outside the row. Included by the kernel's translation units alone.
#ifndef ATTND_KERNELS_CPU_FLASH_ROWS_H_
#define ATTND_KERNELS_CPU_FLASH_ROWS_H_

#include <type_traits>

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

// Elements [i, i + kLanes) of a row of `count`; zeros in the place of those past its end.
template <Element element>
ATTND_CPU_INLINE typename Stored<element>::Vector LoadBits(const unsigned char* row, int64_t i,
                                                           int64_t count) {
  using S = Stored<element>;
  if (i + kLanes <= count) return LoadVector<typename S::Vector>(row + i * S::kBytes);
  typename S::Vector bits{};
  __builtin_memcpy(&bits, row + i * S::kBytes, (count - i) * S::kBytes);
  return bits;
}

template <Element element>
ATTND_CPU_INLINE F32 LoadPart(const unsigned char* row, int64_t i, int64_t count) {
  return Stored<element>::Load(LoadBits<element>(row, i, count));
}

template <Element element>
ATTND_CPU_INLINE void StorePart(F32 values, int64_t i, int64_t count, unsigned char* row) {
  using S = Stored<element>;
  const typename S::Vector bits = S::Store(values);
  if (i + kLanes <= count) return StoreVector(row + i * S::kBytes, bits);
  __builtin_memcpy(row + i * S::kBytes, &bits, (count - i) * S::kBytes);
}

template <Element element>
void LoadRowOf(const unsigned char* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes)
    StoreVector(to + i, LoadPart<element>(from, i, count));
}

// whole: neither rows nor elements are missing, which keeps the block in registers.
template <Element element, bool whole>
ATTND_CPU_INLINE void LoadBlock(const unsigned char* from, int64_t stride_bytes, int64_t rows,
                                int64_t i, int64_t count, float* to, int64_t to_stride) {
  F32 block[kLanes];
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) {
    const unsigned char* row = from + lane * stride_bytes;
    if constexpr (whole) {
      // The next block's rows: so many short streams are more than processors foresee.
      if (lane + kLanes < rows) {
        __builtin_prefetch(row + kLanes * stride_bytes + i * Stored<element>::kBytes);
      }
      block[lane] = LoadPart<element>(row, i, i + kLanes);
    } else {
      block[lane] = lane < rows ? LoadPart<element>(row, i, count) : F32{};
    }
  }
  Transpose(block);
#pragma GCC unroll 16
  for (int j = 0; j < kLanes; ++j) StoreVector(to + (i + j) * to_stride, block[j]);
}

template <Element element>
void LoadLanesOf(const unsigned char* from, int64_t stride_bytes, int64_t rows, int64_t count,
                 float* to, int64_t to_stride) {
  int64_t i = 0;
  if (rows >= kLanes) {
    for (; i + kLanes <= count; i += kLanes) {
      LoadBlock<element, true>(from, stride_bytes, rows, i, count, to, to_stride);
    }
  }
  for (; i < count; i += kLanes) {
    LoadBlock<element, false>(from, stride_bytes, rows, i, count, to, to_stride);
  }
}

template <Element element, bool whole>
ATTND_CPU_INLINE void StoreBlock(const float* from, int64_t from_stride, F32 factor, int64_t rows,
                                 int64_t i, int64_t count, unsigned char* to,
                                 int64_t stride_bytes) {
  F32 block[kLanes];
#pragma GCC unroll 16
  for (int j = 0; j < kLanes; ++j) {
    block[j] = LoadVector<F32>(from + (i + j) * from_stride);
    block[j] = block[j] * factor;
  }
  Transpose(block);
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) {
    unsigned char* row = to + lane * stride_bytes;
    if constexpr (whole) {
      // No row that is another thread's: it would wait for it to come back.
      if (lane + kLanes < rows) {
        __builtin_prefetch(row + kLanes * stride_bytes + i * Stored<element>::kBytes, 1);
      }
      StorePart<element>(block[lane], i, i + kLanes, row);
    } else {
      if (lane < rows) StorePart<element>(block[lane], i, count, row);
    }
  }
}

template <Element element>
void StoreLanesOf(const float* from, int64_t from_stride, F32 factor, int64_t rows, int64_t count,
                  unsigned char* to, int64_t stride_bytes) {
  int64_t i = 0;
  if (rows >= kLanes) {
    for (; i + kLanes <= count; i += kLanes) {
      StoreBlock<element, true>(from, from_stride, factor, rows, i, count, to, stride_bytes);
    }
  }
  for (; i < count; i += kLanes) {
    StoreBlock<element, false>(from, from_stride, factor, rows, i, count, to, stride_bytes);
  }
}

// Calls body with the element type as a constant.
template <typename Body>
ATTND_CPU_INLINE void ForElement(Element element, Body body) {
  switch (element) {
    case Element::kF32:
      return body(std::integral_constant<Element, Element::kF32>());
    case Element::kF16:
      return body(std::integral_constant<Element, Element::kF16>());
    case Element::kBF16:
      return body(std::integral_constant<Element, Element::kBF16>());
  }
}

ATTND_CPU_INLINE int64_t RowBytes(Element element, int64_t count) {
  return count * (element == Element::kF32 ? 4 : 2);
}

// `to` gets `count` floats, then zeros up to a whole vector.
ATTND_CPU_INLINE void LoadRow(Element element, const void* from, int64_t count, float* to) {
  const auto* bytes = static_cast<const unsigned char*>(from);
  ForElement(element, [=](auto type) { LoadRowOf<type.value>(bytes, count, to); });
}

// Up to kLanes rows, a lane each: element i of the row in lane n is to[i * to_stride + n]. Lanes
// without a row, and elements from `count` up to a whole vector, are zeros.
ATTND_CPU_INLINE void LoadLanes(Element element, const unsigned char* from, int64_t stride_bytes,
                                int64_t rows, int64_t count, float* to, int64_t to_stride) {
  ForElement(element, [=](auto type) {
    LoadLanesOf<type.value>(from, stride_bytes, rows, count, to, to_stride);
  });
}

// The way back, each lane times its factor. `from` is readable up to a
// whole vector of elements.
ATTND_CPU_INLINE void StoreLanes(Element element, const float* from, int64_t from_stride,
                                 F32 factor, int64_t rows, int64_t count, unsigned char* to,
                                 int64_t stride_bytes) {
  ForElement(element, [=](auto type) {
    StoreLanesOf<type.value>(from, from_stride, factor, rows, count, to, stride_bytes);
  });
}

}  // namespace
}  // namespace attnd::kernels::cpu
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_FLASH_ROWS_H_
