// Memory of other processes on a GPU that is host memory: a memfd stands for what cuMemCreate
// exports, an address for what cudaMalloc does.
#ifndef ATTND_TESTS_FAKES_FAKE_CUDA_IPC_H_
#define ATTND_TESTS_FAKES_FAKE_CUDA_IPC_H_

#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/sync.h"
#include "server/executor/cuda_ipc.h"

namespace attnd::fakes {

class FakeCudaIpc final : public server::CudaIpc {
 public:
  static server::CudaUuid UuidOf(unsigned char gpu) { return {gpu, 0xab}; }

  explicit FakeCudaIpc(unsigned char gpu = 1) : gpu_(gpu) {}

  // What a process that has this memory on that GPU exports; an event is memory of no size.
  static server::CudaIpcHandle Export(void* memory, int64_t size_bytes, unsigned char gpu = 1) {
    const Exported exported = {kMagic, memory, size_bytes, gpu};
    server::CudaIpcHandle handle = {};
    static_assert(sizeof(exported) <= sizeof(handle));
    std::memcpy(handle.data(), &exported, sizeof(exported));
    return handle;
  }

  // Memory and events that are open.
  int64_t open_count() const {
    MutexLock lock(mutex_);
    return open_count_;
  }

  absl::StatusOr<server::CudaUuid> Uuid() override { return UuidOf(gpu_); }

  absl::StatusOr<void*> OpenMemory(const server::CudaIpcHandle& handle) override {
    const Exported exported = Read(handle);
    if (exported.magic != kMagic)
      return absl::InvalidArgumentError("the driver knows no such handle");
    return Note(exported.memory, exported.size_bytes, exported.gpu);
  }
  void CloseMemory(void*) override { CountOpen(-1); }

  absl::StatusOr<void*> MapMemory(int fd, int64_t size_bytes) override {
    struct stat info;
    if (fstat(fd, &info) != 0 || size_bytes > info.st_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("the driver maps ", info.st_size, " bytes at most, got ", size_bytes));
    }
    void* const memory =
        mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return absl::InvalidArgumentError("the driver knows no such file");
    return Note(memory, size_bytes, gpu_);
  }
  void UnmapMemory(void* memory, int64_t size_bytes) override {
    munmap(memory, static_cast<size_t>(size_bytes));
    CountOpen(-1);
  }

  absl::StatusOr<server::CudaExtent> ExtentOf(void* memory) override {
    MutexLock lock(mutex_);
    return extents_.at(memory);
  }

  absl::StatusOr<server::CudaEvent> OpenEvent(const server::CudaIpcHandle& handle) override {
    const Exported exported = Read(handle);
    if (exported.magic != kMagic)
      return absl::InvalidArgumentError("the driver knows no such event");
    CountOpen(1);
    return exported.memory;
  }
  void CloseEvent(server::CudaEvent) override { CountOpen(-1); }

 private:
  static constexpr uint64_t kMagic = 0xfa4e;
  struct Exported {
    uint64_t magic;
    void* memory;
    int64_t size_bytes;
    unsigned char gpu;
  };

  static Exported Read(const server::CudaIpcHandle& handle) {
    Exported exported = {};
    std::memcpy(&exported, handle.data(), sizeof(exported));
    return exported;
  }
  void* Note(void* memory, int64_t size_bytes, unsigned char gpu) {
    MutexLock lock(mutex_);
    ++open_count_;
    extents_[memory] = {static_cast<unsigned char*>(memory), size_bytes, UuidOf(gpu)};
    return memory;
  }
  void CountOpen(int64_t change) {
    MutexLock lock(mutex_);
    open_count_ += change;
  }

  const unsigned char gpu_;
  mutable Mutex mutex_;
  int64_t open_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<void*, server::CudaExtent> extents_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::fakes

#endif  // ATTND_TESTS_FAKES_FAKE_CUDA_IPC_H_
