// For ThreadSanitizer builds alone, in every program that links the server's services or the
// client. Parts of gRPC are templates in its headers, so they are compiled here and watched, while
// what orders them lies in its libraries, which are not: the sanitizer sees races between gRPC and
// itself. Named are functions of gRPC that set a call up or read its pieces; none of them calls
// into attnd, so that no race of attnd's own is hidden. (What passes from attnd through gRPC back
// to attnd is ordered by attnd itself: client/hand_over.h, server/grpc_order.h.)
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race_top:^grpc::\n"
         "race:grpc::internal::ClientCallbackUnaryImpl::StartCall\n"
         "race:grpc::internal::ClientCallbackUnaryImpl::ClientCallbackUnaryImpl\n"
         "race:grpc::internal::ClientCallbackReaderWriterImpl<*>::StartCall()$\n"
         "race:grpc::internal::ClientCallbackReaderWriterImpl<*>::Write(*WriteOptions)$\n"
         "race:grpc::internal::ClientCallbackReaderWriterImpl<*>::"
         "ClientCallbackReaderWriterImpl(grpc::internal::Call*)$\n"
         "race:grpc::internal::CallOpSet<\n"
         "race:grpc::internal::CallOp\n"
         "race:grpc::internal::CallbackUnaryCallImpl<\n";
}
