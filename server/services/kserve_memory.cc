// The shared memory methods of KserveService.
#include <string>

#include "server/services/call_facts.h"
#include "server/services/kserve_service.h"

namespace attnd::server {
namespace {

absl::Status NoCudaMemory() {
  return absl::UnimplementedError(
      "this server takes no CUDA memory by name: attnd's own clients hand it in at the side socket "
      "(--local_socket, --allow_cuda_ipc)");
}

}  // namespace

ShmOfCall KserveService::ShmOfContext(const grpc::ServerContext& context) const {
  return ShmOf(shm_, context.peer(), context.client_metadata(), tenants_);
}

// Where none is taken there are none: no error, for clients ask and clean up by habit.
grpc::Status KserveService::SystemSharedMemoryStatus(
    grpc::ServerContext* context, const inference::SystemSharedMemoryStatusRequest* request,
    inference::SystemSharedMemoryStatusResponse* response) {
  if (shm_ == nullptr) return End(*context, absl::OkStatus());
  const absl::StatusOr<ShmCaller> caller = ShmOfContext(*context).Caller();
  if (!caller.ok()) return End(*context, caller.status());
  const auto regions = shm_->names.Status(request->name(), *caller);
  if (!regions.ok()) return End(*context, regions.status());
  for (const ShmRegion& region : *regions) {
    auto& status = (*response->mutable_regions())[region.name];
    status.set_name(region.name);
    status.set_key(region.key);
    status.set_offset(region.offset_bytes);
    status.set_byte_size(region.size_bytes);
  }
  return End(*context, absl::OkStatus());
}

grpc::Status KserveService::SystemSharedMemoryRegister(
    grpc::ServerContext* context, const inference::SystemSharedMemoryRegisterRequest* request,
    inference::SystemSharedMemoryRegisterResponse*) {
  const absl::StatusOr<ShmCaller> caller = ShmOfContext(*context).Caller();
  if (!caller.ok()) return End(*context, caller.status());
  return End(*context, shm_->names.Register({request->name(), request->key(), request->offset(),
                                             request->byte_size()},
                                            *caller));
}

grpc::Status KserveService::SystemSharedMemoryUnregister(
    grpc::ServerContext* context, const inference::SystemSharedMemoryUnregisterRequest* request,
    inference::SystemSharedMemoryUnregisterResponse*) {
  if (shm_ == nullptr) return End(*context, absl::OkStatus());
  const absl::StatusOr<ShmCaller> caller = ShmOfContext(*context).Caller();
  if (!caller.ok()) return End(*context, caller.status());
  if (request->name().empty()) {
    shm_->names.UnregisterAll(*caller);
  } else {
    shm_->names.Unregister(request->name(), *caller);
  }
  return End(*context, absl::OkStatus());
}

grpc::Status KserveService::CudaSharedMemoryStatus(grpc::ServerContext* context,
                                                   const inference::CudaSharedMemoryStatusRequest*,
                                                   inference::CudaSharedMemoryStatusResponse*) {
  return End(*context, absl::OkStatus());
}

grpc::Status KserveService::CudaSharedMemoryRegister(
    grpc::ServerContext* context, const inference::CudaSharedMemoryRegisterRequest*,
    inference::CudaSharedMemoryRegisterResponse*) {
  return End(*context, NoCudaMemory());
}

grpc::Status KserveService::CudaSharedMemoryUnregister(
    grpc::ServerContext* context, const inference::CudaSharedMemoryUnregisterRequest*,
    inference::CudaSharedMemoryUnregisterResponse*) {
  return End(*context, absl::OkStatus());
}

}  // namespace attnd::server
