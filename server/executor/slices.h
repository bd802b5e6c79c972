// A problem in parts that may be computed one after another.
#ifndef ATTND_SERVER_EXECUTOR_SLICES_H_
#define ATTND_SERVER_EXECUTOR_SLICES_H_

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace attnd::server {

// The task in about `parts` tasks, > 0, of about the same FLOPs, with the plan of the whole:
// together they are the same bits (Backend). Each is some KV heads of one batch entry; where there
// are fewer of those than parts, some query positions of one, at least kLeastQueries. For backends
// of host memory.
std::vector<kernels::AttentionTask> CutTask(const kernels::AttentionTask& task, int64_t parts);

// For the queries of each part K and V are laid out anew.
inline constexpr int64_t kLeastQueries = 256;

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_SLICES_H_
