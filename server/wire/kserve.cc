#include "server/wire/kserve.h"

#include "absl/strings/str_cat.h"
#include "server/wire/kserve_translate.h"

namespace attnd::server::wire {

namespace {

// Whether each output fits where it is to go.
absl::Status CheckPlaces(const WantedOutputs& wanted, const OutputSpec& output) {
  const struct {
    const char* name;
    const absl::optional<WantedOutputs::Place>& place;
    int64_t size_bytes;
  } outputs[] = {{"O", wanted.o_place, output.o_bytes},
                 {"LSE", wanted.lse_place, output.lse_bytes}};
  for (const auto& o : outputs) {
    if (!o.place || o.place->range.size_bytes() >= o.size_bytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("output ", o.name, "'s shared_memory_byte_size is ",
                     o.place->range.size_bytes(), "; it has ", o.size_bytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckModel(absl::string_view name, absl::string_view version) {
  if (name == kModelName && (version.empty() || version == kModelVersion)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("there is no model ", Quoted(name), " of version ",
                                          Quoted(version), "; this server has \"", kModelName,
                                          "\" of version \"", kModelVersion, "\""));
}

absl::StatusOr<std::unique_ptr<Request>> Inference::Decode(absl::Span<const ByteSpan> message,
                                                           const Limits& limits, TimePoint arrival,
                                                           BufferPool& pool,
                                                           int64_t max_shared_bytes) {
  const absl::StatusOr<ScannedInfer> scanned = ScanInfer(message, limits);
  if (!scanned.ok()) return scanned.status();
  id_ = scanned->request.id();
  const absl::StatusOr<TranslatedInfer> translated = Translate(*scanned, message, limits, shm_);
  if (!translated.ok()) return translated.status();
  wanted_ = translated->wanted;
  shared_input_bytes_ = translated->shared_bytes();
  const PayloadSources from{translated->q.Source(message), translated->k.Source(message),
                            translated->v.Source(message)};
  absl::StatusOr<std::unique_ptr<Request>> request =
      Check(translated->header, from.q.size_bytes, from.k.size_bytes, from.v.size_bytes, limits,
            arrival, kInferNames);
  if (!request.ok()) return request;
  if (absl::Status status = CheckPlaces(wanted_, (*request)->output); !status.ok()) return status;
  if (shared_input_bytes_ > max_shared_bytes) {
    return absl::ResourceExhaustedError("more lies in shared memory than is to be copied here");
  }
  absl::Status status = CopyPayloads(from, pool, **request, kInferNames);
  if (!status.ok()) return status;
  const OutputSpec& output = (*request)->output;
  (*request)->shm_input_bytes = shared_input_bytes_;
  (*request)->shm_output_bytes =
      (wanted_.o_place ? output.o_bytes : 0) + (wanted_.lse_place ? output.lse_bytes : 0);
  return request;
}

Inference::SharedOutputs Inference::TakeSharedOutputs(Answer& answer) const {
  SharedOutputs outputs;
  if (wanted_.o_place) outputs.o = std::move(answer.o);
  if (wanted_.lse_place) outputs.lse = std::move(answer.lse);
  return outputs;
}

absl::Status Inference::PlaceOutputs(const SharedOutputs& outputs) const {
  const struct {
    const char* name;
    const absl::optional<WantedOutputs::Place>& place;
    const Buffer& from;
  } places[] = {{"O", wanted_.o_place, outputs.o}, {"LSE", wanted_.lse_place, outputs.lse}};
  for (const auto& output : places) {
    if (!output.place) continue;
    const absl::Status status =
        output.place->range.WriteFrom(output.from.data(), output.from.size_bytes());
    if (status.ok()) continue;
    return absl::Status(status.code(),
                        absl::StrCat("output ", output.name, ": ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace attnd::server::wire
