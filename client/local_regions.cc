#include "client/local_regions.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/status.h"
#include "server/regions/protocol/socket_path.h"

namespace attnd::client {
namespace {

// A server that was not on this host is asked again after this, for it may have been started anew.
constexpr std::chrono::seconds kRefusalHolds(10);
// To learn that the server is here must not cost a call its deadline.
constexpr absl::Duration kMaxSetUp = absl::Seconds(2);
// A kept region serves calls of this part of its size, so that small ones do not hold large ones.
constexpr int64_t kLeastShare = 8;
constexpr int64_t kMinRegionBytes = int64_t{1} << 20;

int64_t SizeOf(const LocalRegion& region) { return static_cast<int64_t>(region.bytes().size()); }

// Sizes in steps of an eighth, so that calls that differ a little share regions. > 0.
int64_t RegionBytes(int64_t size_bytes) {
  int64_t step = kMinRegionBytes;
  while (step < size_bytes / 8) step *= 2;
  return std::max<int64_t>((size_bytes + step - 1) / step, 1) * step;
}

// Not: that the time was too short, or that the server does not answer, for it may be starting.
bool IsRefusal(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsFailedPrecondition(status) ||
         absl::IsResourceExhausted(status) || absl::IsPermissionDenied(status);
}

int64_t Aligned(int64_t size_bytes) {
  return (size_bytes + kRegionAlignment - 1) / kRegionAlignment * kRegionAlignment;
}

// Of LSE: a float for each row of Q.
int64_t LseBytes(const TensorView& q) {
  const int64_t row_bytes = q.shape.empty() ? 0 : q.shape.back() * SizeBytes(q.dtype);
  return row_bytes == 0 ? 0 : q.size_bytes() / row_bytes * static_cast<int64_t>(sizeof(float));
}

void CopyOut(const OutputView& from, int64_t size_bytes, Tensor& to) {
  const auto* const data = static_cast<const unsigned char*>(from.data);
  to.bytes.assign(data, data + size_bytes);
}

}  // namespace

std::unique_ptr<LocalRegion> LocalRegions::TakeKept(int64_t size_bytes) {
  std::vector<std::unique_ptr<LocalRegion>> gone;  // ended without the lock
  MutexLock lock(mutex_);
  for (auto kept = kept_.end(); kept != kept_.begin();) {
    --kept;
    if (SizeOf(**kept) < size_bytes || SizeOf(**kept) / kLeastShare > RegionBytes(size_bytes)) {
      continue;
    }
    std::unique_ptr<LocalRegion> region = std::move(*kept);
    kept = kept_.erase(kept);
    if (region->connected()) return region;
    held_bytes_ -= SizeOf(*region);
    gone.push_back(std::move(region));
  }
  return nullptr;
}

absl::Status LocalRegions::Count(int64_t size_bytes) {
  std::vector<std::unique_ptr<LocalRegion>> gone;
  MutexLock lock(mutex_);
  // Those that have served nobody for longest make room.
  while (!kept_.empty() && size_bytes > options_.max_region_bytes - held_bytes_) {
    held_bytes_ -= SizeOf(*kept_.front());
    gone.push_back(std::move(kept_.front()));
    kept_.erase(kept_.begin());
  }
  if (size_bytes > options_.max_region_bytes - held_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a region of ", size_bytes, " bytes does not fit: the client's calls hold ",
                     held_bytes_, " of max_region_bytes ", options_.max_region_bytes));
  }
  held_bytes_ += size_bytes;
  return absl::OkStatus();
}

void LocalRegions::Uncount(int64_t size_bytes) {
  MutexLock lock(mutex_);
  held_bytes_ -= size_bytes;
}

absl::StatusOr<std::string> LocalRegions::AskInstanceId(absl::Duration timeout) {
  {
    MutexLock lock(mutex_);
    if (!instance_id_.empty()) return instance_id_;
  }
  absl::StatusOr<std::string> instance_id = ask_instance_id_(timeout);
  if (!instance_id.ok()) return instance_id;
  MutexLock lock(mutex_);
  instance_id_ = *instance_id;
  return instance_id;
}

void LocalRegions::ForgetInstance() {
  std::vector<std::unique_ptr<LocalRegion>> gone;
  MutexLock lock(mutex_);
  instance_id_.clear();
  for (const auto& kept : kept_) held_bytes_ -= SizeOf(*kept);
  gone.swap(kept_);
}

absl::StatusOr<std::unique_ptr<LocalRegion>> LocalRegions::New(int64_t size_bytes,
                                                               absl::Duration timeout) {
  return AtServer(timeout, [size_bytes](LocalRegionOptions options) {
    options.size_bytes = size_bytes;
    return LocalRegion::Create(options);
  });
}

absl::StatusOr<std::unique_ptr<LocalRegion>> LocalRegions::Share(const CudaMemory& memory,
                                                                 absl::Duration timeout) {
  return AtServer(timeout, [&memory](const LocalRegionOptions& options) {
    return LocalRegion::Share(options, memory);
  });
}

absl::StatusOr<std::unique_ptr<LocalRegion>> LocalRegions::AtServer(absl::Duration timeout,
                                                                    const Make& make) {
  if (options_.local_socket == kNoLocalSocket) {
    return absl::FailedPreconditionError("the client's local_socket is none");
  }
  const std::string path =
      options_.local_socket.empty() ? regions::DefaultSocketPath() : options_.local_socket;
  // Most clients are on another host, and need not ask their server to know it.
  if (access(path.c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("no server's side socket is at ", path));
  }
  absl::StatusOr<std::unique_ptr<LocalRegion>> region;
  for (int tries = 0; tries < 2; ++tries) {
    const absl::StatusOr<std::string> instance_id = AskInstanceId(timeout);
    if (!instance_id.ok()) return instance_id.status();
    region = make({.socket_path = path, .instance_id = *instance_id, .timeout = timeout});
    // Another instance: perhaps the server has been started anew since it was asked.
    if (!absl::IsFailedPrecondition(region.status())) break;
    ForgetInstance();
  }
  return region;
}

absl::StatusOr<std::unique_ptr<LocalRegion>> LocalRegions::Take(int64_t size_bytes,
                                                                absl::Duration timeout) {
  if (std::unique_ptr<LocalRegion> kept = TakeKept(size_bytes)) return kept;
  {
    MutexLock lock(mutex_);
    if (!refusal_.ok() && Clock::now() < ask_again_) return refusal_;
  }
  const int64_t region_bytes = RegionBytes(size_bytes);
  if (absl::Status status = Count(region_bytes); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<LocalRegion>> region =
      New(region_bytes, std::min(timeout, kMaxSetUp));
  if (region.ok()) return region;
  MutexLock lock(mutex_);
  held_bytes_ -= region_bytes;
  if (!IsRefusal(region.status())) return region;
  refusal_ = region.status();
  ask_again_ = Clock::now() + kRefusalHolds;
  return region;
}

void LocalRegions::GiveBack(std::unique_ptr<LocalRegion> region) {
  MutexLock lock(mutex_);
  kept_.push_back(std::move(region));
}

void LocalRegions::Drop(std::unique_ptr<LocalRegion> region) { Uncount(SizeOf(*region)); }

absl::StatusOr<std::unique_ptr<StagedCall>> StagedCall::Stage(LocalRegions& regions,
                                                              const AttentionRequest& request,
                                                              absl::Duration timeout) {
  std::unique_ptr<StagedCall> call(new StagedCall(regions, request));
  AttentionRequest& staged = call->request_;
  TensorView* const inputs[3] = {&staged.q, &staged.k, &staged.v};
  const int64_t o_bytes = Aligned(staged.q.size_bytes());
  int64_t size_bytes = o_bytes + (staged.want_lse ? Aligned(LseBytes(staged.q)) : 0);
  for (const TensorView* input : inputs) size_bytes += Aligned(input->size_bytes());
  absl::StatusOr<std::unique_ptr<LocalRegion>> region = regions.Take(size_bytes, timeout);
  if (!region.ok()) return region.status();
  call->region_ = *std::move(region);
  unsigned char* at = call->region_->bytes().data();
  for (TensorView* input : inputs) {
    const int64_t input_bytes = input->size_bytes();
    if (input_bytes > 0) std::memcpy(at, input->data, static_cast<size_t>(input_bytes));
    input->data = at;
    input->region = call->region_.get();
    at += Aligned(input_bytes);
  }
  staged.o_place = OutputView{at, call->region_.get()};
  if (staged.want_lse) staged.lse_place = OutputView{at + o_bytes, call->region_.get()};
  return call;
}

StagedCall::~StagedCall() {
  if (region_ != nullptr) regions_.Drop(std::move(region_));
}

void StagedCall::Finish(absl::StatusOr<AttentionResult>& result) {
  if (!result.ok()) {
    // Otherwise the server may not be done with it.
    if (IsUntouched(result.status())) regions_.GiveBack(std::move(region_));
    return;
  }
  if (o_data_ != nullptr) {
    std::memcpy(o_data_, request_.o_place->data, static_cast<size_t>(request_.q.size_bytes()));
  } else {
    CopyOut(*request_.o_place, request_.q.size_bytes(), result->o);
  }
  if (result->lse) {
    const int64_t lse_bytes = LseBytes(request_.q);
    if (result->lse->view().size_bytes() != lse_bytes) {
      result = absl::InternalError(absl::StrCat(
          "answer: lse has ", result->lse->view().size_bytes(), " bytes, asked for ", lse_bytes));
      return;
    }
    CopyOut(*request_.lse_place, lse_bytes, *result->lse);
  }
  regions_.GiveBack(std::move(region_));
}

}  // namespace attnd::client
