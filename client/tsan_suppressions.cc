// For ThreadSanitizer builds alone, as server/services/tsan_suppressions.cc: gRPC's header
// templates are watched here, what orders them lies in its libraries, which are not. Named are
// functions of gRPC that set a call up or read its pieces; none of them calls into attnd. (What
// passes from attnd through gRPC back to attnd is ordered by call.cc itself.)
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
