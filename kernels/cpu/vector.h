// Vectors of the widest kind that this translation unit's flags allow, in the compilers' vector
// extensions; intrinsics only where those do not reach (fused multiply-add, fp16).
//
// Included by the kernel's translation units alone. Everything has internal linkage: see
// flash_kernel.h.
#ifndef ATTND_KERNELS_CPU_VECTOR_H_
#define ATTND_KERNELS_CPU_VECTOR_H_

#include <cstdint>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define ATTND_CPU_INLINE __attribute__((always_inline)) inline

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / 4;

typedef float F32 __attribute__((vector_size(kVectorBytes)));
typedef int32_t I32 __attribute__((vector_size(kVectorBytes)));
typedef uint32_t U32 __attribute__((vector_size(kVectorBytes)));
typedef uint16_t U16 __attribute__((vector_size(kVectorBytes / 2)));

template <typename V>
ATTND_CPU_INLINE V LoadVector(const void* from) {  // any alignment
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}
template <typename V>
ATTND_CPU_INLINE void StoreVector(void* to, V value) {  // any alignment
  __builtin_memcpy(to, &value, sizeof(V));
}

template <typename To, typename From>
ATTND_CPU_INLINE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// x - 0 is x for every x (x + 0 is not, for -0), which compilers know: only the broadcast is left.
ATTND_CPU_INLINE F32 Broadcast(float value) { return value - F32{}; }
ATTND_CPU_INLINE I32 BroadcastInt(int32_t value) { return value - I32{}; }
ATTND_CPU_INLINE U32 Bits(F32 value) { return BitCast<U32>(value); }
ATTND_CPU_INLINE F32 FromBits(U32 bits) { return BitCast<F32>(bits); }
ATTND_CPU_INLINE F32 Abs(F32 x) { return FromBits(Bits(x) & 0x7fffffffu); }

// The larger one; b where either is a NaN.
ATTND_CPU_INLINE F32 Max(F32 a, F32 b) { return a > b ? a : b; }

// Lanes whose number has the bit `step` come from b, the others from a: rows' 2 x 2 blocks of
// `step` lanes, transposed; the upper row, then the lower one.
template <int step, int... lane>
ATTND_CPU_INLINE void SwapBlocks(F32& a, F32& b, std::integer_sequence<int, lane...>) {
  const F32 upper =
      __builtin_shufflevector(a, b, ((lane & step) != 0 ? kLanes + lane - step : lane)...);
  b = __builtin_shufflevector(a, b, ((lane & step) != 0 ? kLanes + lane : lane + step)...);
  a = upper;
}

// rows[i][j] becomes rows[j][i].
template <int step = 1>
ATTND_CPU_INLINE void Transpose(F32 (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & step) != 0) continue;
    SwapBlocks<step>(rows[i], rows[i + step], std::make_integer_sequence<int, kLanes>());
  }
  if constexpr (2 * step < kLanes) Transpose<2 * step>(rows);
}

// a * b + c. Fused wherever the instruction set can, always or never for one translation unit: the
// units are compiled with -ffp-contract=off, so that no compiler decides.
ATTND_CPU_INLINE F32 Fma(F32 a, F32 b, F32 c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

ATTND_CPU_INLINE F32 FromBF16(U16 bits) {
  return FromBits(__builtin_convertvector(bits, U32) << 16);
}

ATTND_CPU_INLINE U16 ToBF16(F32 value) {  // to nearest, ties to even
  const U32 bits = Bits(value);
  const U32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U32 quiet = (bits >> 16) | 0x40u;
  return __builtin_convertvector(value == value ? rounded : quiet, U16);
}

ATTND_CPU_INLINE F32 FromF16(U16 bits) {
#if defined(__AVX512F__)
  // The zero-masked forms, here and below: GCC 12 takes the plain ones' undefined operand for a
  // variable that is read before it is set.
  return _mm512_maskz_cvtph_ps(0xffff, BitCast<__m256i>(bits));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(BitCast<__m128i>(bits));
#else
  // Exponent and mantissa moved to fp32's places, then the exponents' biases (15, 127) evened out
  // by an exact product, which also makes subnormals normal.
  const U32 wide = __builtin_convertvector(bits, U32);
  const U32 magnitude = (wide & 0x7fffu) << 13;
  const F32 finite = FromBits(magnitude) * 0x1p112f;
  const F32 special = FromBits(magnitude | 0x7f800000u);  // infinity or NaN
  const U32 result = Bits(magnitude >= 0x0f800000u ? special : finite);
  return FromBits(result | ((wide & 0x8000u) << 16));
#endif
}

ATTND_CPU_INLINE U16 ToF16(F32 value) {  // to nearest, ties to even; too large becomes infinity
#if defined(__AVX512F__)
  return BitCast<U16>(_mm512_maskz_cvtps_ph(0xffff, value, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  return BitCast<U16>(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
#else
  const U32 bits = Bits(value);
  const U32 magnitude = bits & 0x7fffffffu;
  const U32 normal = ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
  // Below 2^-14 in units of 2^-24, which is half an ulp of 0.5: the sum rounds to them.
  const U32 subnormal = Bits(FromBits(magnitude) + 0.5f) - 0x3f000000u;
  U32 result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? U32{} + 0x7c00u : result;  // 65520 and more
  result = value == value ? result : U32{} + 0x7e00u;
  return __builtin_convertvector(result | ((bits >> 16) & 0x8000u), U16);
#endif
}

// e * 2^n, rounded once, for e in [0.5, 2) and whole n in [-151, 0]. `shifted` is n + 1.5 * 2^23: n
// in its low bits.
ATTND_CPU_INLINE F32 TimesPowerOf2(F32 e, F32 n, F32 shifted) {
#if defined(__AVX512F__)
  (void)shifted;
  return _mm512_maskz_scalef_ps(0xffff, e, n);
#else
  (void)n;
  // Both factors are normal numbers, the product with the first one too.
  return e * FromBits((Bits(shifted) << 23) + ((127u + 24u) << 23)) * 0x1p-24f;
#endif
}

constexpr float kLog2E = 0x1.715476p+0f;

constexpr float kLeastExponent = -151.0f;  // 2^-151 is below half of the smallest subnormal number

// 2^(x * factor) for x <= 0, within 2 ulp for that product, which no rounding touches where
// multiply-adds are fused: 1 for 0; 0 for -inf; subnormal results are rounded once; NaN stays NaN.
// `least` is kLeastExponent / factor, both finite.
ATTND_CPU_INLINE F32 Exp2(F32 x, F32 factor, F32 least) {
  x = Max(least, x);
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
  const F32 magic = Broadcast(0x1.8p23f);
  const F32 shifted = Fma(x, factor, magic);
  const F32 n = shifted - magic;
  const F32 r = Fma(x, factor, -n);
  // 2^r on |r| <= 1/2 by weighted minimax fit, error 3.0e-9.
  F32 e = Fma(Broadcast(0x1.416b52p-13f), r, Broadcast(0x1.5f082ep-10f));
  e = Fma(e, r, Broadcast(0x1.3b2de0p-7f));
  e = Fma(e, r, Broadcast(0x1.c6af7cp-5f));
  e = Fma(e, r, Broadcast(0x1.ebfbdcp-3f));
  e = Fma(e, r, Broadcast(0x1.62e430p-1f));
  e = Fma(e, r, Broadcast(1.0f));
  return TimesPowerOf2(e, n, shifted);
}

// exp(x) for x <= 0, within 2 ulp; 0 for -inf; subnormal results are rounded once; NaN stays NaN.
ATTND_CPU_INLINE F32 Exp(F32 x) {
  // exp(-104) is below half of the smallest subnormal, so nothing below -104 differs from it.
  x = Max(Broadcast(-104.0f), x);
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
  const F32 magic = Broadcast(0x1.8p23f);
  const F32 shifted = Fma(x, Broadcast(kLog2E), magic);
  const F32 n = shifted - magic;
  F32 r = Fma(n, Broadcast(-0x1.62e400p-1f), x);  // ln 2 in two parts: n times the first is exact
  r = Fma(n, Broadcast(-0x1.7f7d1cp-20f), r);
  // exp(r) = 1 + r + r^2 g(r) on |r| <= ln(2) / 2; g by weighted minimax fit, error 3.2e-9.
  F32 g = Broadcast(0x1.6a2256p-10f);
  g = Fma(g, r, Broadcast(0x1.123b02p-7f));
  g = Fma(g, r, Broadcast(0x1.5558f8p-5f));
  g = Fma(g, r, Broadcast(0x1.555490p-3f));
  g = Fma(g, r, Broadcast(0x1.fffffcp-2f));
  const F32 e = Fma(r * r, g, r) + 1.0f;
  return TimesPowerOf2(e, n, shifted);
}

// tanh(x) with a relative error below 1e-6 for every x: a polynomial near 0, where the other form
// cancels.
ATTND_CPU_INLINE F32 Tanh(F32 x) {
  const F32 size = Abs(x);
  // tanh(x) = x + x z g(z), z = x^2, on |x| <= 0.625; g by weighted minimax fit, error 4.4e-9.
  const F32 z = x * x;
  F32 g = Broadcast(-0x1.75e1ccp-8f);
  g = Fma(g, z, Broadcast(0x1.52269ap-6f));
  g = Fma(g, z, Broadcast(-0x1.b83c5ap-5f));
  g = Fma(g, z, Broadcast(0x1.110726p-3f));
  g = Fma(g, z, Broadcast(-0x1.555532p-2f));
  const F32 near = Fma(size * z, g, size);
  const F32 e = Exp(size * -2.0f);
  const F32 far = (1.0f - e) / (1.0f + e);
  return FromBits(Bits(size < 0.625f ? near : far) | (Bits(x) & 0x80000000u));
}

}  // namespace
}  // namespace attnd::kernels::cpu
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_VECTOR_H_
