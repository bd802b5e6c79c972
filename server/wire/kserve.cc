#include "server/wire/kserve.h"

#include "absl/strings/str_cat.h"
#include "server/wire/kserve_translate.h"

namespace attnd::server::wire {

absl::Status CheckModel(absl::string_view name, absl::string_view version) {
  if (name == kModelName && (version.empty() || version == kModelVersion)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("there is no model ", Quoted(name), " of version ",
                                          Quoted(version), "; this server has \"", kModelName,
                                          "\" of version \"", kModelVersion, "\""));
}

absl::StatusOr<std::unique_ptr<Request>> Inference::Decode(absl::Span<const ByteSpan> message,
                                                           const Limits& limits, TimePoint arrival,
                                                           BufferPool& pool) {
  const absl::StatusOr<ScannedInfer> scanned = ScanInfer(message, limits);
  if (!scanned.ok()) return scanned.status();
  id_ = scanned->request.id();
  const absl::StatusOr<TranslatedInfer> translated = Translate(*scanned, message, limits);
  if (!translated.ok()) return translated.status();
  wanted_ = translated->wanted;
  const PayloadSources from{translated->q.Source(message), translated->k.Source(message),
                            translated->v.Source(message)};
  absl::StatusOr<std::unique_ptr<Request>> request =
      Check(translated->header, from.q.size_bytes, from.k.size_bytes, from.v.size_bytes, limits,
            arrival, kInferNames);
  if (!request.ok()) return request;
  if (absl::Status status = CopyPayloads(from, pool, **request); !status.ok()) return status;
  return request;
}

}  // namespace attnd::server::wire
