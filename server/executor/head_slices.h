// A problem in parts that may be computed one after another.
#ifndef ATTND_SERVER_EXECUTOR_HEAD_SLICES_H_
#define ATTND_SERVER_EXECUTOR_HEAD_SLICES_H_

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace attnd::server {

// The task in about `parts` tasks, > 0, of equal size, each some KV heads of one batch entry, with
// the plan of the whole: together they are the same bits, which depend on neither (Backend). At
// most one for each KV head of each entry.
std::vector<kernels::AttentionTask> CutByHeads(const kernels::AttentionTask& task, int64_t parts);

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_HEAD_SLICES_H_
