// The first problems of a device, before any caller's.
#ifndef ATTND_SERVER_WARM_UP_H_
#define ATTND_SERVER_WARM_UP_H_

#include "absl/status/status.h"
#include "server/executor/device.h"

namespace attnd::server {

// Runs one tiny problem for each kernel that the device has (dtype, head_dim class, family) through
// the three stages and looks at its answer, so that a server is ready only once its device has
// shown that it computes, and no caller waits for a kernel to be loaded. The device's error, or
// INTERNAL if an answer is wrong; UNIMPLEMENTED if it has none. Nobody else may use the device
// meanwhile.
absl::Status WarmUp(Device& device);

}  // namespace attnd::server

#endif  // ATTND_SERVER_WARM_UP_H_
