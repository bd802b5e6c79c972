// Several backends for one kind of memory as one: each problem is computed by the first that
// supports it.
#ifndef ATTND_KERNELS_FIRST_SUPPORTING_H_
#define ATTND_KERNELS_FIRST_SUPPORTING_H_

#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace attnd::kernels {

// Named as the first. A plan's kernel says which one computes. Which one that is depends on the
// problem alone, as Supports() does, so the invariants of each hold for all. Null if one of them is
// null. At least one.
std::unique_ptr<Backend> FirstSupporting(std::vector<std::unique_ptr<Backend>> backends);

}  // namespace attnd::kernels

#endif  // ATTND_KERNELS_FIRST_SUPPORTING_H_
