// Element types, and scalar conversions for code where speed does not matter (tests, the reference,
// loaders).
#ifndef ATTND_KERNELS_DTYPE_H_
#define ATTND_KERNELS_DTYPE_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace attnd::kernels {

enum class DType : uint8_t { kF32, kF16, kBF16 };

constexpr int64_t SizeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// As it stands in a kernel's name: "f32", "f16", "bf16".
constexpr const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
  }
  return "?";
}

inline float BF16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Round to nearest, ties to even; a NaN stays a NaN.
inline uint16_t FloatToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float F16ToFloat(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  float magnitude;
  if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else if (exponent == 0x1f) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 0x400), exponent - 25);
  }
  return (bits & 0x8000) ? -magnitude : magnitude;
}

// Round to nearest, ties to even; too large becomes infinity; a NaN stays a NaN.
inline uint16_t FloatToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  if (std::isnan(value)) return sign | 0x7e00;
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return sign | 0x7c00;  // halfway between 65504 and 65536
  if (magnitude < 0x1p-14f) {                       // subnormal: units of 2^-24
    return sign | static_cast<uint16_t>(std::lrint(std::ldexp(magnitude, 24)));
  }
  const uint32_t rounded = (bits & 0x7fffffff) + 0xfff + ((bits >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded >> 13) - (112 << 10));
}

// Element `index` of a tensor of `dtype`.
inline float LoadElement(const void* data, int64_t index, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kF16:
      return F16ToFloat(static_cast<const uint16_t*>(data)[index]);
    case DType::kBF16:
      return BF16ToFloat(static_cast<const uint16_t*>(data)[index]);
  }
  return 0;
}

inline void StoreElement(void* data, int64_t index, DType dtype, float value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[index] = value;
      return;
    case DType::kF16:
      static_cast<uint16_t*>(data)[index] = FloatToF16(value);
      return;
    case DType::kBF16:
      static_cast<uint16_t*>(data)[index] = FloatToBF16(value);
      return;
  }
}

}  // namespace attnd::kernels

#endif  // ATTND_KERNELS_DTYPE_H_
