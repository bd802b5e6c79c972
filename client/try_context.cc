#include "client/try_context.h"

#include "absl/strings/string_view.h"
#include "client/retry.h"

namespace attnd::client {

ServerWord GrpcContext::word() const {
  const auto& trailers = grpc_.GetServerTrailingMetadata();
  ServerWord word;
  word.from_server = trailers.count("attnd-version") > 0;
  word.untouched = trailers.count("attnd-untouched") > 0;
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  if (pushback != trailers.end()) {
    word.pushback_ms =
        ParsePushbackMs(absl::string_view(pushback->second.data(), pushback->second.size()));
  }
  return word;
}

}  // namespace attnd::client
