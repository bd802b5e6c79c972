// The warpgroup's matrix products: 64 rows by N columns by 16, fp32 sums in registers.
//
// d[4 n + e] of a thread in warp w of the group holds row 16 w + lane / 4 + 8 (e / 2), column 8 n +
// 2 (lane % 4) + e % 2: mma.sync's layout, tile by tile.
#ifndef ATTND_KERNELS_CUDA_SM90A_WGMMA_CUH_
#define ATTND_KERNELS_CUDA_SM90A_WGMMA_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/element.cuh"

namespace attnd::kernels::cuda::sm90a {

// A matrix in shared memory in rows of 128 bytes with the copy engine's 128-byte swizzle; base
// aligned to 1024 bytes. Read along its rows (the sum runs over a row's elements), or down its
// columns (the sum runs over rows; then chunk_bytes leads from one 64-column chunk to the next).
// This is the descriptor's low word: the high one is always the same, and half the instructions.
// Adding bytes / 16 moves the start.
__device__ __forceinline__ uint32_t OperandDescriptor(uint32_t shared, int chunk_bytes) {
  return (shared >> 4) | (static_cast<uint32_t>(chunk_bytes >> 4) << 16);
}

// Orders registers written by ordinary code before products that read or add to them.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of sums across a wait or a fence.
template <int kCount>
__device__ __forceinline__ void PinRegisters(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// AddShared: d (+)= A B^T, both in shared memory, both read along rows. AddRegisters: d (+)= A B, A
// a 64 x 16 operand in registers, B in shared memory read down its columns. `keep` false: from
// zero.
template <int kColumns>
struct Wgmma;

// An operand descriptor's high word: eight rows of 128 bytes (in steps of 16), 128-byte swizzle.
#define ATTND_DESCRIPTOR_HIGH "0x40000040"
#define ATTND_W0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define ATTND_W1 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define ATTND_W2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define ATTND_W3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define ATTND_W4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define ATTND_W5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define ATTND_W6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define ATTND_W7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define ATTND_W8 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define ATTND_W9 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define ATTND_W10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define ATTND_W11 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define ATTND_W12 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define ATTND_W13 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define ATTND_W14 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define ATTND_W15 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define ATTND_R(b)                                                                                \
  "+f"(d[8 * b]), "+f"(d[8 * b + 1]), "+f"(d[8 * b + 2]), "+f"(d[8 * b + 3]), "+f"(d[8 * b + 4]), \
      "+f"(d[8 * b + 5]), "+f"(d[8 * b + 6]), "+f"(d[8 * b + 7])
#define ATTND_LIST4 ATTND_W0 ATTND_W1 ATTND_W2 ATTND_W3
#define ATTND_LIST5 ATTND_W0 ATTND_W1 ATTND_W2 ATTND_W3 ATTND_W4
#define ATTND_LIST6 ATTND_W0 ATTND_W1 ATTND_W2 ATTND_W3 ATTND_W4 ATTND_W5
#define ATTND_LIST7 ATTND_W0 ATTND_W1 ATTND_W2 ATTND_W3 ATTND_W4 ATTND_W5 ATTND_W6
#define ATTND_LIST8 ATTND_W0 ATTND_W1 ATTND_W2 ATTND_W3 ATTND_W4 ATTND_W5 ATTND_W6 ATTND_W7
#define ATTND_LIST9 ATTND_W0 ATTND_W1 ATTND_W2 ATTND_W3 ATTND_W4 ATTND_W5 ATTND_W6 ATTND_W7 ATTND_W8
#define ATTND_LIST10 \
  ATTND_W0 ATTND_W1 ATTND_W2 ATTND_W3 ATTND_W4 ATTND_W5 ATTND_W6 ATTND_W7 ATTND_W8 ATTND_W9
#define ATTND_LIST11                                                                        \
  ATTND_W0 ATTND_W1 ATTND_W2 ATTND_W3 ATTND_W4 ATTND_W5 ATTND_W6 ATTND_W7 ATTND_W8 ATTND_W9 \
      ATTND_W10
#define ATTND_LIST12                                                                        \
  ATTND_W0 ATTND_W1 ATTND_W2 ATTND_W3 ATTND_W4 ATTND_W5 ATTND_W6 ATTND_W7 ATTND_W8 ATTND_W9 \
      ATTND_W10 ATTND_W11
#define ATTND_LIST14                                                                        \
  ATTND_W0 ATTND_W1 ATTND_W2 ATTND_W3 ATTND_W4 ATTND_W5 ATTND_W6 ATTND_W7 ATTND_W8 ATTND_W9 \
      ATTND_W10 ATTND_W11 ATTND_W12 ATTND_W13
#define ATTND_LIST16                                                                        \
  ATTND_W0 ATTND_W1 ATTND_W2 ATTND_W3 ATTND_W4 ATTND_W5 ATTND_W6 ATTND_W7 ATTND_W8 ATTND_W9 \
      ATTND_W10 ATTND_W11 ATTND_W12 ATTND_W13 ATTND_W14 ATTND_W15
#define ATTND_SUMS4 ATTND_R(0), ATTND_R(1), ATTND_R(2), ATTND_R(3)
#define ATTND_SUMS5 ATTND_R(0), ATTND_R(1), ATTND_R(2), ATTND_R(3), ATTND_R(4)
#define ATTND_SUMS6 ATTND_R(0), ATTND_R(1), ATTND_R(2), ATTND_R(3), ATTND_R(4), ATTND_R(5)
#define ATTND_SUMS7 \
  ATTND_R(0), ATTND_R(1), ATTND_R(2), ATTND_R(3), ATTND_R(4), ATTND_R(5), ATTND_R(6)
#define ATTND_SUMS8 \
  ATTND_R(0), ATTND_R(1), ATTND_R(2), ATTND_R(3), ATTND_R(4), ATTND_R(5), ATTND_R(6), ATTND_R(7)
#define ATTND_SUMS9                                                                               \
  ATTND_R(0), ATTND_R(1), ATTND_R(2), ATTND_R(3), ATTND_R(4), ATTND_R(5), ATTND_R(6), ATTND_R(7), \
      ATTND_R(8)
#define ATTND_SUMS10                                                                              \
  ATTND_R(0), ATTND_R(1), ATTND_R(2), ATTND_R(3), ATTND_R(4), ATTND_R(5), ATTND_R(6), ATTND_R(7), \
      ATTND_R(8), ATTND_R(9)
#define ATTND_SUMS11                                                                              \
  ATTND_R(0), ATTND_R(1), ATTND_R(2), ATTND_R(3), ATTND_R(4), ATTND_R(5), ATTND_R(6), ATTND_R(7), \
      ATTND_R(8), ATTND_R(9), ATTND_R(10)
#define ATTND_SUMS12                                                                              \
  ATTND_R(0), ATTND_R(1), ATTND_R(2), ATTND_R(3), ATTND_R(4), ATTND_R(5), ATTND_R(6), ATTND_R(7), \
      ATTND_R(8), ATTND_R(9), ATTND_R(10), ATTND_R(11)
#define ATTND_SUMS14                                                                              \
  ATTND_R(0), ATTND_R(1), ATTND_R(2), ATTND_R(3), ATTND_R(4), ATTND_R(5), ATTND_R(6), ATTND_R(7), \
      ATTND_R(8), ATTND_R(9), ATTND_R(10), ATTND_R(11), ATTND_R(12), ATTND_R(13)
#define ATTND_SUMS16                                                                              \
  ATTND_R(0), ATTND_R(1), ATTND_R(2), ATTND_R(3), ATTND_R(4), ATTND_R(5), ATTND_R(6), ATTND_R(7), \
      ATTND_R(8), ATTND_R(9), ATTND_R(10), ATTND_R(11), ATTND_R(12), ATTND_R(13), ATTND_R(14),    \
      ATTND_R(15)

// N: columns, N / 2 registers in BLOCKS of eight. A to F: the numbers of the six operands after
// them.
#define ATTND_WGMMA_SHARED(N, TYPE, BLOCKS, A, B, C)                                          \
  asm volatile(                                                                               \
      "{\n.reg .pred p;\n.reg .b64 a, b;\n.reg .b32 h;\nmov.b32 h, " ATTND_DESCRIPTOR_HIGH    \
      ";\nmov.b64 a, {%" A ", h};\nmov.b64 b, {%" B ", h};\nsetp.ne.b32 p, %" C               \
      ", 0;\n"                                                                                \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" ATTND_LIST##BLOCKS \
      "}, a, b, p, 1, 1, 0, 0;\n}"                                                            \
      : ATTND_SUMS##BLOCKS                                                                    \
      : "r"(a), "r"(b), "r"(static_cast<int>(keep)))
#define ATTND_WGMMA_REGISTERS(N, TYPE, BLOCKS, A, B, C, D, E, F)                                 \
  asm volatile("{\n.reg .pred p;\n.reg .b64 b;\n.reg .b32 h;\nmov.b32 h, " ATTND_DESCRIPTOR_HIGH \
               ";\nmov.b64 b, {%" E ", h};\nsetp.ne.b32 p, %" F                                  \
               ", 0;\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                   \
               " {" ATTND_LIST##BLOCKS "}, {%" A ",%" B ",%" C ",%" D "}, b, p, 1, 1, 1;\n}"     \
               : ATTND_SUMS##BLOCKS                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(keep)))
#define ATTND_WGMMA(N, BLOCKS, A, B, C, D, E, F)                                                \
  template <>                                                                                   \
  struct Wgmma<N> {                                                                             \
    template <class Element>                                                                    \
    __device__ static __forceinline__ void AddShared(float (&d)[N / 2], uint32_t a, uint32_t b, \
                                                     bool keep) {                               \
      if constexpr (std::is_same_v<Element, Half>) {                                            \
        ATTND_WGMMA_SHARED(N, "f16", BLOCKS, A, B, C);                                          \
      } else {                                                                                  \
        ATTND_WGMMA_SHARED(N, "bf16", BLOCKS, A, B, C);                                         \
      }                                                                                         \
    }                                                                                           \
    template <class Element>                                                                    \
    __device__ static __forceinline__ void AddRegisters(float (&d)[N / 2], const uint32_t* a,   \
                                                        uint32_t b, bool keep) {                \
      if constexpr (std::is_same_v<Element, Half>) {                                            \
        ATTND_WGMMA_REGISTERS(N, "f16", BLOCKS, A, B, C, D, E, F);                              \
      } else {                                                                                  \
        ATTND_WGMMA_REGISTERS(N, "bf16", BLOCKS, A, B, C, D, E, F);                             \
      }                                                                                         \
    }                                                                                           \
  };

ATTND_WGMMA(64, 4, "32", "33", "34", "35", "36", "37")
ATTND_WGMMA(80, 5, "40", "41", "42", "43", "44", "45")
ATTND_WGMMA(96, 6, "48", "49", "50", "51", "52", "53")
ATTND_WGMMA(112, 7, "56", "57", "58", "59", "60", "61")
ATTND_WGMMA(128, 8, "64", "65", "66", "67", "68", "69")
ATTND_WGMMA(144, 9, "72", "73", "74", "75", "76", "77")
ATTND_WGMMA(160, 10, "80", "81", "82", "83", "84", "85")
ATTND_WGMMA(176, 11, "88", "89", "90", "91", "92", "93")
ATTND_WGMMA(192, 12, "96", "97", "98", "99", "100", "101")
ATTND_WGMMA(224, 14, "112", "113", "114", "115", "116", "117")
ATTND_WGMMA(256, 16, "128", "129", "130", "131", "132", "133")

#undef ATTND_WGMMA
#undef ATTND_WGMMA_REGISTERS
#undef ATTND_WGMMA_SHARED
#undef ATTND_DESCRIPTOR_HIGH
#undef ATTND_R
#undef ATTND_SUMS4
#undef ATTND_LIST4
#undef ATTND_SUMS5
#undef ATTND_LIST5
#undef ATTND_SUMS6
#undef ATTND_LIST6
#undef ATTND_SUMS7
#undef ATTND_LIST7
#undef ATTND_SUMS8
#undef ATTND_LIST8
#undef ATTND_SUMS9
#undef ATTND_LIST9
#undef ATTND_SUMS10
#undef ATTND_LIST10
#undef ATTND_SUMS11
#undef ATTND_LIST11
#undef ATTND_SUMS12
#undef ATTND_LIST12
#undef ATTND_SUMS14
#undef ATTND_LIST14
#undef ATTND_SUMS16
#undef ATTND_LIST16
#undef ATTND_W0
#undef ATTND_W1
#undef ATTND_W2
#undef ATTND_W3
#undef ATTND_W4
#undef ATTND_W5
#undef ATTND_W6
#undef ATTND_W7
#undef ATTND_W8
#undef ATTND_W9
#undef ATTND_W10
#undef ATTND_W11
#undef ATTND_W12
#undef ATTND_W13
#undef ATTND_W14
#undef ATTND_W15

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_WGMMA_CUH_
