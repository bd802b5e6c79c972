// The memory of one tensor, hostile on purpose: what lies between and around its elements is
// poison, and is checked afterwards.
#ifndef ATTND_TESTS_CASES_BUFFER_H_
#define ATTND_TESTS_CASES_BUFFER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "tests/cases/case.h"

namespace attnd::testing {

enum class Placement {
  // Dense, and the allocation ends where the tensor ends: sanitizers see every stray access.
  kSnug,
  // Odd strides and an odd base, padding and guard zones filled with NaN.
  kOddNaN,
  // Other odd strides, padding and guard zones filled with large finite numbers.
  kOddLarge,
};
const char* PlacementName(Placement placement);

// Extents of one problem's tensor.
struct Extents {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t len = 0;
  int64_t head_dim = 0;
};

// One problem's tensor inside a buffer.
struct Region {
  Extents extents;
  int64_t offset_elems = 0;
  kernels::Strides strides;

  int64_t Element(int64_t batch, int64_t head, int64_t row, int64_t d) const {
    return offset_elems + batch * strides.batch + head * strides.head + row * strides.row + d;
  }
};

// A tensor of one case: one region, or for a packed case one a sequence.
class Buffer {
 public:
  // `extents`: one; or for Layout::kTHD one a sequence, each of batch 1 and equal heads.
  Buffer(kernels::DType dtype, Layout layout, Placement placement,
         const std::vector<Extents>& extents, uint64_t seed);

  const Region& region(size_t i) const { return regions_[i]; }
  // First element of region i; null if the buffer is snug and empty.
  void* data(size_t i);

  // `values`: dense [batch, heads, len, head_dim]. Rounds to the dtype.
  void SetRegion(size_t i, const std::vector<float>& values);
  void SetRegion(size_t i, float value);
  void Set(size_t i, int64_t batch, int64_t head, int64_t row, int64_t d, float value);
  // Dense [batch, heads, len, head_dim].
  std::vector<double> Get(size_t i) const;
  // The same as raw bytes, to compare bits.
  std::vector<unsigned char> GetBits(size_t i) const;

  // Inputs: remembers the content, which Check then wants unchanged. Call it last.
  void Freeze() { frozen_ = bytes_; }
  // Outputs: fills everything with a bit pattern that no computation gives. Check then wants it
  // gone inside the regions and untouched outside.
  void FillWithSentinel();
  // Empty, or what is wrong. `only_region` >= 0: the other regions count as outside.
  std::string Check(int only_region = -1) const;

 private:
  int64_t size_elems() const;
  uint32_t Bits(int64_t element) const;
  void SetBits(int64_t element, uint32_t bits);
  void FillWithPoison(Placement placement, uint64_t seed);
  // Calls visit(element) for every element of region i, in dense order.
  template <typename Visit>
  void ForEach(size_t i, Visit visit) const;

  kernels::DType dtype_;
  std::vector<Region> regions_;
  std::vector<unsigned char> bytes_;
  std::vector<unsigned char> frozen_;
};

}  // namespace attnd::testing

#endif  // ATTND_TESTS_CASES_BUFFER_H_
