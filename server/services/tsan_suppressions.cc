// For ThreadSanitizer builds alone. Parts of gRPC are templates in its headers, so they are
// compiled here and watched, while what orders them lies in its libraries, which are not: the
// sanitizer sees races between gRPC and itself. Named are functions of gRPC that never call into
// attnd, so that no race of attnd's own is hidden.
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:grpc::internal::CallOpSet<\n"
         "race:grpc::internal::CallOpS\n"
         "race:grpc::internal::CallOpRecv\n"
         "race:grpc::internal::CallbackUnaryCallImpl<\n";
}
