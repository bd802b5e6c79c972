#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/attnd_kernels.h"
#include "kernels/backend.h"
#include "kernels/registry.h"
#include "kernels/sync.h"

namespace k = attnd::kernels;

static_assert(ATTND_UNBOUNDED == k::kUnbounded);
// The first version of the struct: a caller knows at least this much.
constexpr uint64_t kMinTaskBytes = 248;
static_assert(sizeof(attnd_task) == kMinTaskBytes,
              "fields are added at the end, this number stays");

struct attnd_kernels {
  std::unique_ptr<k::Backend> backend;
  const std::string name;
  attnd::Mutex mutex;  // one Run at a time
  // Kept between runs, grown as needed.
  std::vector<unsigned char> workspace ABSL_GUARDED_BY(mutex);
};

namespace {

constexpr int64_t kWorkspaceAlignmentBytes = 64;
// Calls of a program that computes follow each other within microseconds, of which a sleeping
// thread would take ten to arrive.
constexpr std::chrono::microseconds kSpin{200};
// More than any machine has processors for: a larger number is a mistake.
constexpr int32_t kMaxThreads = 1024;

void CopyText(absl::string_view text, char* to, size_t size_bytes) {
  if (to == nullptr || size_bytes == 0) return;
  const size_t length = std::min(text.size(), size_bytes - 1);
  std::copy_n(text.data(), length, to);
  to[length] = '\0';
}

// The one place where a Status becomes a code. attnd_code has absl's numbers.
int Report(const absl::Status& status, char* error, size_t error_size_bytes) {
  CopyText(status.message(), error, error_size_bytes);
  return static_cast<int>(status.code());
}

// Runs `body`, a function that returns a Status; no exception leaves the library.
template <typename Body>
int Guarded(char* error, size_t error_size_bytes, Body body) {
  try {
    return Report(body(), error, error_size_bytes);
  } catch (const std::bad_alloc&) {
    return Report(absl::ResourceExhaustedError("out of memory"), error, error_size_bytes);
  } catch (const std::exception& e) {
    return Report(absl::InternalError(e.what()), error, error_size_bytes);
  }
}

absl::Status OutOfRange(const char* field, int64_t value, const char* range) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; it must be ", range));
}

// The caller's task as this library knows it.
absl::StatusOr<attnd_task> ReadTask(const attnd_task* from) {
  if (from == nullptr) return absl::InvalidArgumentError("task is NULL");
  const uint64_t size_bytes = from->struct_size_bytes;
  if (size_bytes < kMinTaskBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("struct_size_bytes is ", size_bytes, "; it must be at least ", kMinTaskBytes));
  }
  if (size_bytes > sizeof(attnd_task)) {
    return absl::UnimplementedError(absl::StrCat("struct_size_bytes is ", size_bytes,
                                                 "; this library, ", attnd_version(), ", knows ",
                                                 sizeof(attnd_task), ": a newer one is needed"));
  }
  attnd_task task;
  attnd_task_init(&task, sizeof(task));
  std::memcpy(&task, from, size_bytes);
  return task;
}

k::Strides StridesOf(const attnd_strides& s) { return {s.batch, s.head, s.row}; }

absl::StatusOr<k::AttentionProblem> ProblemOf(const attnd_task& task) {
  if (task.dtype < ATTND_F32 || task.dtype > ATTND_BF16) {
    return OutOfRange("dtype", task.dtype, "in 0..2");
  }
  if (task.causal < ATTND_CAUSAL_NONE || task.causal > ATTND_CAUSAL_BOTTOM_RIGHT) {
    return OutOfRange("causal", task.causal, "in 0..2");
  }
  k::AttentionProblem p;
  p.dtype = static_cast<k::DType>(task.dtype);
  p.batch = task.batch;
  p.q_heads = task.q_heads;
  p.kv_heads = task.kv_heads;
  p.q_len = task.q_len;
  p.kv_len = task.kv_len;
  p.head_dim = task.head_dim;
  p.mask.causal.alignment = static_cast<k::Causal>(task.causal);
  p.mask.window = {task.window_left, task.window_right};
  p.scale = task.scale == 0 && task.head_dim > 0 ? k::DefaultScale(task.head_dim) : task.scale;
  p.softcap = task.softcap;
  p.alibi = task.alibi_slopes != nullptr;
  if (absl::Status status = k::Validate(p); !status.ok()) return status;
  return p;
}

k::AttentionArgs ArgsOf(const attnd_task& task) {
  k::AttentionArgs args;
  args.q = task.q;
  args.k = task.k;
  args.v = task.v;
  args.o = task.o;
  args.q_strides = StridesOf(task.q_strides);
  args.k_strides = StridesOf(task.k_strides);
  args.v_strides = StridesOf(task.v_strides);
  args.o_strides = StridesOf(task.o_strides);
  args.lse = task.lse;
  args.lse_batch_stride = task.lse_batch_stride;
  args.lse_head_stride = task.lse_head_stride;
  args.alibi_slopes = task.alibi_slopes;
  return args;
}

absl::Status CheckPointers(const k::AttentionProblem& p, const k::AttentionArgs& args) {
  if (p.empty()) return absl::OkStatus();
  const struct {
    const char* name;
    const void* pointer;
    bool needed;
  } pointers[] = {{"q", args.q, true},
                  {"k", args.k, p.kv_len > 0},
                  {"v", args.v, p.kv_len > 0},
                  {"o", args.o, true}};
  for (const auto& pointer : pointers) {
    if (pointer.needed && pointer.pointer == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(pointer.name, " is NULL for ", ToString(p)));
    }
  }
  return absl::OkStatus();
}

// The problem of a task that the backend takes.
absl::StatusOr<k::AttentionProblem> Accept(const k::Backend& backend, const attnd_task* from) {
  const absl::StatusOr<attnd_task> task = ReadTask(from);
  if (!task.ok()) return task.status();
  absl::StatusOr<k::AttentionProblem> problem = ProblemOf(*task);
  if (!problem.ok()) return problem;
  if (absl::Status status = backend.Supports(*problem); !status.ok()) return status;
  return problem;
}

absl::StatusOr<k::AttentionTask> Prepare(const k::Backend& backend, const attnd_task* from) {
  absl::StatusOr<k::AttentionProblem> problem = Accept(backend, from);
  if (!problem.ok()) return problem.status();
  const k::AttentionArgs args = ArgsOf(*ReadTask(from));
  if (absl::Status status = CheckPointers(*problem, args); !status.ok()) return status;
  return k::AttentionTask{*problem, backend.Plan(*problem), args};
}

absl::Status Run(attnd_kernels& handle, const attnd_task* from, int64_t count, void* stream) {
  if (count < 0) return OutOfRange("count", count, "at least 0");
  if (count > 0 && from == nullptr) return absl::InvalidArgumentError("tasks is NULL");
  std::vector<k::AttentionTask> tasks;
  const unsigned char* next = reinterpret_cast<const unsigned char*>(from);
  for (int64_t i = 0; i < count; ++i) {
    const attnd_task* task = reinterpret_cast<const attnd_task*>(next);
    absl::StatusOr<k::AttentionTask> prepared = Prepare(*handle.backend, task);
    if (!prepared.ok()) {
      return absl::Status(prepared.status().code(),
                          absl::StrCat("task ", i, ": ", prepared.status().message()));
    }
    tasks.push_back(*std::move(prepared));
    next += task->struct_size_bytes;
  }
  attnd::MutexLock lock(handle.mutex);
  const int64_t bytes = handle.backend->WorkspaceBytes(tasks);
  if (bytes > 0) {
    const size_t needed = static_cast<size_t>(bytes + kWorkspaceAlignmentBytes);
    if (handle.workspace.size() < needed) handle.workspace.resize(needed);
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(handle.workspace.data());
  const uintptr_t skip = -address % kWorkspaceAlignmentBytes;
  return handle.backend->Run(tasks, bytes > 0 ? handle.workspace.data() + skip : nullptr, stream);
}

}  // namespace

extern "C" {

const char* attnd_version(void) { return ATTND_VERSION; }

void attnd_task_init(attnd_task* task, uint64_t struct_size_bytes) {
  if (task == nullptr || struct_size_bytes < kMinTaskBytes) return;
  std::memset(task, 0, struct_size_bytes);
  task->struct_size_bytes = struct_size_bytes;
  task->window_left = ATTND_UNBOUNDED;
  task->window_right = ATTND_UNBOUNDED;
}

int attnd_create(const char* backend, int32_t threads, attnd_kernels** handle, char* error,
                 size_t error_size_bytes) {
  return Guarded(error, error_size_bytes, [&]() -> absl::Status {
    if (handle == nullptr) return absl::InvalidArgumentError("handle is NULL");
    *handle = nullptr;
    if (threads < 0 || threads > kMaxThreads) return OutOfRange("threads", threads, "in 0..1024");
    absl::StatusOr<k::ChosenBackend> chosen =
        k::ChooseBackend(backend == nullptr ? "" : backend, {.threads = threads, .spin = kSpin});
    if (!chosen.ok()) return chosen.status();
    const std::string name(chosen->backend->Name());
    *handle = new attnd_kernels{std::move(chosen->backend), name, {}, {}};
    return absl::OkStatus();
  });
}

void attnd_destroy(attnd_kernels* handle) { delete handle; }

const char* attnd_backend_name(const attnd_kernels* handle) {
  return handle == nullptr ? "" : handle->name.c_str();
}

int attnd_supports(const attnd_kernels* handle, const attnd_task* task, char* error,
                   size_t error_size_bytes) {
  return Guarded(error, error_size_bytes, [&]() -> absl::Status {
    if (handle == nullptr) return absl::InvalidArgumentError("handle is NULL");
    return Accept(*handle->backend, task).status();
  });
}

int attnd_kernel_name(const attnd_kernels* handle, const attnd_task* task, char* name,
                      size_t name_size_bytes, char* error, size_t error_size_bytes) {
  return Guarded(error, error_size_bytes, [&]() -> absl::Status {
    if (handle == nullptr) return absl::InvalidArgumentError("handle is NULL");
    const absl::StatusOr<k::AttentionProblem> problem = Accept(*handle->backend, task);
    if (!problem.ok()) return problem.status();
    CopyText(handle->backend->Plan(*problem).kernel, name, name_size_bytes);
    return absl::OkStatus();
  });
}

int attnd_run(attnd_kernels* handle, const attnd_task* tasks, int64_t count, void* stream,
              char* error, size_t error_size_bytes) {
  return Guarded(error, error_size_bytes, [&]() -> absl::Status {
    if (handle == nullptr) return absl::InvalidArgumentError("handle is NULL");
    return Run(*handle, tasks, count, stream);
  });
}

}  // extern "C"
