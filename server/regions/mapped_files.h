// What this process has mapped.
#ifndef ATTND_SERVER_REGIONS_MAPPED_FILES_H_
#define ATTND_SERVER_REGIONS_MAPPED_FILES_H_

#include "absl/status/statusor.h"
#include "server/regions/region_ledger.h"

namespace attnd::server {

// Whether any of this process' mappings is of `file`: its program, its libraries, and what they
// share with others (CUDA, NCCL). INTERNAL if /proc cannot be read.
absl::StatusOr<bool> IsMappedHere(const FileId& file);

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGIONS_MAPPED_FILES_H_
