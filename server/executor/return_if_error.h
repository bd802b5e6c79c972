// A caller's status handed on.
#ifndef ATTND_SERVER_EXECUTOR_RETURN_IF_ERROR_H_
#define ATTND_SERVER_EXECUTOR_RETURN_IF_ERROR_H_

#include "absl/status/status.h"

#define ATTND_RETURN_IF_ERROR(expression)                               \
  do {                                                                  \
    if (absl::Status attnd_status = (expression); !attnd_status.ok()) { \
      return attnd_status;                                              \
    }                                                                   \
  } while (0)

#endif  // ATTND_SERVER_EXECUTOR_RETURN_IF_ERROR_H_
