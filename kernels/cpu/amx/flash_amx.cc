// The kernel for AMX with bf16; this file's flags stand in kernels/CMakeLists.txt.
#include "kernels/cpu/amx/body.h"

namespace attnd::kernels::cpu {
namespace {

// What differs between elements and head_dims: one instance each.
struct Instance {
  int64_t task_rows;
  int64_t scratch_bytes;
  void (*run)(const GroupTile& tile, void* scratch);
};

template <int kSteps, int kParts>
void RunTask(const GroupTile& tile, void* scratch) {
  amx::Task<kSteps, kParts>(tile, scratch).Run();
}

template <int kSteps, int kParts>
constexpr Instance MakeInstance() {
  using Task = amx::Task<kSteps, kParts>;
  return {Task::kRows, Task::ScratchBytes(), &RunTask<kSteps, kParts>};
}

// head_dim up to 64, 96, 128, 192, 256.
constexpr Instance kBF16[] = {MakeInstance<2, 1>(), MakeInstance<3, 1>(), MakeInstance<4, 1>(),
                              MakeInstance<6, 1>(), MakeInstance<8, 1>()};
constexpr Instance kF16[] = {MakeInstance<2, 2>(), MakeInstance<3, 2>(), MakeInstance<4, 2>(),
                             MakeInstance<6, 2>(), MakeInstance<8, 2>()};

const Instance& InstanceOf(Element element, int64_t head_dim) {
  const int index = head_dim <= 64    ? 0
                    : head_dim <= 96  ? 1
                    : head_dim <= 128 ? 2
                    : head_dim <= 192 ? 3
                                      : 4;
  return element == Element::kF16 ? kF16[index] : kBF16[index];
}

int64_t TaskRowsOf(Element element, int64_t head_dim) {
  return InstanceOf(element, head_dim).task_rows;
}

int64_t ScratchBytesOf(Element element, int64_t head_dim) {
  return InstanceOf(element, head_dim).scratch_bytes;
}

void RunTile(const GroupTile& tile, void* scratch) {
  InstanceOf(tile.element, tile.head_dim).run(tile, scratch);
}

void Exp2Array(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    _mm512_storeu_ps(out + i, amx::ExactExp2(_mm512_loadu_ps(in + i)));
  }
}

}  // namespace

constinit const GroupKernel kFlashAmx = {
    "amx", amx::kBlockRows, amx::kStepKeys, &TaskRowsOf, &ScratchBytesOf, &RunTile, &Exp2Array};

}  // namespace attnd::kernels::cpu
