#include "server/services/kserve_model.h"

#include <string>

#include "server/wire/kserve.h"

namespace attnd::server {
namespace {

constexpr char kPlatform[] = "attnd";

struct Tensor {
  const char* name;
  const char* datatype;
  inference::DataType type;
  int rank;
};

// FP16 and BF16 are taken too, but a tensor has one datatype here. CU_SEQLENS_Q and CU_SEQLENS_K
// are left out: for a model with optional inputs perf_analyzer uses no shared memory.
constexpr Tensor kInputs[] = {
    {"Q", "FP32", inference::TYPE_FP32, 4},
    {"K", "FP32", inference::TYPE_FP32, 4},
    {"V", "FP32", inference::TYPE_FP32, 4},
};
constexpr Tensor kOutputs[] = {
    {"O", "FP32", inference::TYPE_FP32, 4},
    {"LSE", "FP32", inference::TYPE_FP32, 3},
};

template <typename Dims>
void AddAnyExtents(int rank, Dims& dims) {
  for (int axis = 0; axis < rank; ++axis) dims.Add(-1);
}

void FillMetadata(const Tensor& tensor, inference::ModelMetadataResponse::TensorMetadata& to) {
  to.set_name(tensor.name);
  to.set_datatype(tensor.datatype);
  AddAnyExtents(tensor.rank, *to.mutable_shape());
}

template <typename ToTensor>
void FillConfig(const Tensor& tensor, ToTensor& to) {
  to.set_name(tensor.name);
  to.set_data_type(tensor.type);
  AddAnyExtents(tensor.rank, *to.mutable_dims());
}

void FillDuration(int64_t count, int64_t us, inference::StatisticDuration& to) {
  to.set_count(static_cast<uint64_t>(count));
  to.set_ns(static_cast<uint64_t>(us) * 1000);
}

// The times of a batch are in each of its requests.
void FillBatch(int64_t size, const InferenceStatistics::Times& of,
               inference::InferBatchStatistics& to) {
  const int64_t batches = of.batches(size);
  to.set_batch_size(static_cast<uint64_t>(size));
  FillDuration(batches, of.upload_us / size, *to.mutable_compute_input());
  FillDuration(batches, of.run_us / size, *to.mutable_compute_infer());
  FillDuration(batches, of.download_us / size, *to.mutable_compute_output());
}

}  // namespace

inference::ModelMetadataResponse ModelMetadataOf() {
  inference::ModelMetadataResponse metadata;
  metadata.set_name(wire::kModelName);
  metadata.add_versions(std::string(wire::kModelVersion));
  metadata.set_platform(kPlatform);
  for (const Tensor& input : kInputs) FillMetadata(input, *metadata.add_inputs());
  for (const Tensor& output : kOutputs) FillMetadata(output, *metadata.add_outputs());
  return metadata;
}

inference::ModelConfig ModelConfigOf() {
  inference::ModelConfig config;
  config.set_name(wire::kModelName);
  config.set_platform(kPlatform);
  config.set_backend(kPlatform);
  config.mutable_version_policy()->mutable_latest()->set_num_versions(1);
  config.set_max_batch_size(0);
  for (const Tensor& input : kInputs) FillConfig(input, *config.add_input());
  for (const Tensor& output : kOutputs) FillConfig(output, *config.add_output());
  config.mutable_model_transaction_policy()->set_decoupled(false);
  return config;
}

inference::ModelStatistics ModelStatisticsOf(const InferenceStatistics::Totals& totals) {
  const InferenceStatistics::Times& answered = totals.answered;
  inference::ModelStatistics model;
  model.set_name(wire::kModelName);
  model.set_version(wire::kModelVersion);
  model.set_last_inference(static_cast<uint64_t>(totals.last_answer_ms));
  model.set_inference_count(static_cast<uint64_t>(answered.requests));
  model.set_execution_count(static_cast<uint64_t>(totals.batches()));
  inference::InferStatistics& stats = *model.mutable_inference_stats();
  FillDuration(answered.requests, answered.total_us, *stats.mutable_success());
  FillDuration(totals.failed, totals.failed_us, *stats.mutable_fail());
  FillDuration(answered.requests, answered.queue_us, *stats.mutable_queue());
  FillDuration(answered.requests, answered.upload_us, *stats.mutable_compute_input());
  FillDuration(answered.requests, answered.run_us, *stats.mutable_compute_infer());
  FillDuration(answered.requests, answered.download_us, *stats.mutable_compute_output());
  FillDuration(0, 0, *stats.mutable_cache_hit());
  FillDuration(0, 0, *stats.mutable_cache_miss());
  for (const auto& [size, times] : totals.by_batch_size) {
    FillBatch(size, times, *model.add_batch_stats());
  }
  return model;
}

}  // namespace attnd::server
