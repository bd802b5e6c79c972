#include "server/regions/sigbus_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/sync.h"

namespace attnd::server {
namespace {

// What the handler reads. `version` is odd while the slot changes: the handler passes such slots
// over, for a mapping that is being touched keeps its slot still.
struct Slot {
  std::atomic<uint64_t> version{0};
  std::atomic<uintptr_t> begin{0};  // 0: free
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> tripped{false};
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler may use lock-free atomics only");

constinit Slot slots[SigbusGuard::kMaxGuards];
// Slots in use lie below it; it never falls.
constinit std::atomic<int> used_slots{0};

constinit Mutex slots_mutex;
bool installed ABSL_GUARDED_BY(slots_mutex) = false;
// Written before the handler is in place, only read afterwards.
struct sigaction previous;
uintptr_t page_bytes = 0;

void SetSlot(Slot& slot, uintptr_t begin, uintptr_t end) {
  slot.version.fetch_add(1);
  slot.begin.store(begin);
  slot.end.store(end);
  slot.tripped.store(false);
  slot.version.fetch_add(1);
}

bool Covers(const Slot& slot, uintptr_t address) {
  const uint64_t version = slot.version.load();
  const bool inside = slot.begin.load() <= address && address < slot.end.load();
  return inside && version % 2 == 0 && slot.version.load() == version;
}

// True if a page of zeros lies at the address now.
bool Mend(void* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  const int count = used_slots.load();
  for (int i = 0; i < count; ++i) {
    if (!Covers(slots[i], address)) continue;
    slots[i].tripped.store(true);
    void* const page = static_cast<char*>(at) - address % page_bytes;
    return mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                -1, 0) == page;
  }
  return false;
}

void OnSigbus(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const bool is_fault = info->si_code > 0;  // else somebody sent it, and there is no address
  const bool mended = is_fault && Mend(info->si_addr);
  errno = saved_errno;
  if (mended) return;
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler == SIG_IGN && !is_fault) {
    return;
  } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
    // A fault comes again at once, and then ends the process, as its memory dump should show it.
    ::signal(SIGBUS, SIG_DFL);
    if (!is_fault) raise(SIGBUS);
  } else {
    previous.sa_handler(signal);
  }
}

absl::Status Install() ABSL_EXCLUSIVE_LOCKS_REQUIRED(slots_mutex) {
  if (installed) return absl::OkStatus();
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = OnSigbus;
  // SA_NODEFER: a handler that came before may leave by longjmp, as it could without this one.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGBUS, nullptr, &previous) != 0 || sigaction(SIGBUS, &action, nullptr) != 0) {
    return absl::InternalError(absl::StrCat("sigaction(SIGBUS) failed, errno ", errno));
  }
  installed = true;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SigbusGuard>> SigbusGuard::New(void* begin, int64_t size_bytes) {
  MutexLock lock(slots_mutex);
  if (absl::Status status = Install(); !status.ok()) return status;
  for (int i = 0; i < kMaxGuards; ++i) {
    if (slots[i].begin.load() != 0) continue;
    const auto address = reinterpret_cast<uintptr_t>(begin);
    SetSlot(slots[i], address, address + static_cast<uintptr_t>(size_bytes));
    if (used_slots.load() <= i) used_slots.store(i + 1);
    return std::unique_ptr<SigbusGuard>(new SigbusGuard(i));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("there are ", kMaxGuards, " guarded mappings already"));
}

SigbusGuard::~SigbusGuard() {
  MutexLock lock(slots_mutex);
  SetSlot(slots[slot_], 0, 0);
}

bool SigbusGuard::tripped() const { return slots[slot_].tripped.load(); }

}  // namespace attnd::server
