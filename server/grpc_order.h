// Tells ThreadSanitizer of an order that it cannot see.
#ifndef ATTND_SERVER_GRPC_ORDER_H_
#define ATTND_SERVER_GRPC_ORDER_H_

#if defined(__SANITIZE_THREAD__)
#define ATTND_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ATTND_THREAD_SANITIZER 1
#endif
#endif

#ifdef ATTND_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace attnd::server {

// gRPC sees to it that what is written to `call` before an operation is asked for is seen by the
// reactions, but with locks of libraries that the sanitizer does not watch. Stands before every
// such operation and first in every reaction; nothing in other builds.
inline void PassBaton([[maybe_unused]] void* call) {
#ifdef ATTND_THREAD_SANITIZER
  __tsan_acquire(call);
  __tsan_release(call);
#endif
}

}  // namespace attnd::server

#endif  // ATTND_SERVER_GRPC_ORDER_H_
