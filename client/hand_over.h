// Tells ThreadSanitizer of an order that it cannot see, because gRPC's libraries are not built with
// it: what a thread did before it released `mark` is done for the thread that acquires it. Nothing
// in other builds.
#ifndef ATTND_CLIENT_HAND_OVER_H_
#define ATTND_CLIENT_HAND_OVER_H_

#if defined(__SANITIZE_THREAD__)
#define ATTND_CLIENT_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ATTND_CLIENT_TSAN 1
#endif
#endif

#ifdef ATTND_CLIENT_TSAN
extern "C" void __tsan_acquire(void* mark);
extern "C" void __tsan_release(void* mark);
#endif

namespace attnd::client {

inline void ReleaseToGrpc([[maybe_unused]] void* mark) {
#ifdef ATTND_CLIENT_TSAN
  __tsan_release(mark);
#endif
}

inline void AcquireFromGrpc([[maybe_unused]] void* mark) {
#ifdef ATTND_CLIENT_TSAN
  __tsan_acquire(mark);
#endif
}

}  // namespace attnd::client

#endif  // ATTND_CLIENT_HAND_OVER_H_
