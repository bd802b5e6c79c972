// From a piece of work to the plain data that a kernel takes.
#ifndef ATTND_KERNELS_CPU_TILES_H_
#define ATTND_KERNELS_CPU_TILES_H_

#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/work_list.h"

namespace attnd::kernels::cpu {

Element ElementOf(DType dtype);

// Whether all rows see the same few keys, of which few_keys.h makes short work.
bool SeesFewKeys(const AttentionProblem& p);

// Of an item that is cut by query head.
FlashTile FlashTileOf(const WorkItem& item);

// Of an item that is cut by KV head.
GroupTile GroupTileOf(const WorkItem& item);

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_TILES_H_
