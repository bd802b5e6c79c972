#include "server/job.h"

#include <utility>

namespace attnd::server {

const char* StageName(Stage stage) {
  switch (stage) {
    case Stage::kReceive:
      return "receive";
    case Stage::kQueue:
      return "queue";
    case Stage::kUpload:
      return "upload";
    case Stage::kRun:
      return "run";
    case Stage::kDownload:
      return "download";
    case Stage::kDone:
      return "done";
  }
  return "?";
}

Job::Job(std::unique_ptr<Request> request, Done done)
    : request_(std::move(request)), done_(std::move(done)) {}

Job::~Job() {
  Finish(absl::InternalError("the request was lost inside the server"), Stage::kQueue);
}

void Job::GiveInputsBack() {
  for (Buffer* input : {&request_->q, &request_->k, &request_->v}) {
    *input = Buffer::Lend(nullptr, input->size_bytes());
  }
}

bool Job::Finish(absl::StatusOr<Answer> answer, Stage stage) {
  if (finished_.exchange(true, std::memory_order_acq_rel)) return false;
  if (at_end_) at_end_();
  if (request_->leases != nullptr && (answer.ok() || stage <= Stage::kQueue)) {
    const absl::Status leases = request_->leases->End();
    if (answer.ok() && !leases.ok()) answer = leases;
  }
  // Moved out, so that what the callback holds goes when it has run.
  const Done done = std::move(done_);
  done(*this, std::move(answer), stage);
  return true;
}

}  // namespace attnd::server
