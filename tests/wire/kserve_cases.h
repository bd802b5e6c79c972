// Messages of the Open Inference Protocol: good ones, and one table of those that must be refused.
#ifndef ATTND_TESTS_WIRE_KSERVE_CASES_H_
#define ATTND_TESTS_WIRE_KSERVE_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "attnd/v1/attnd.pb.h"
#include "inference/grpc_service.pb.h"
#include "tests/wire/malformed_cases.h"

namespace attnd::testing {

// The same problem in that protocol's terms, contents raw. BHSD or THD, without slopes.
inference::ModelInferRequest InferRequestOf(const v1::ComputeRequest& request);

// Adds an input of this datatype and shape, its contents raw.
void AddRawInput(inference::ModelInferRequest& request, const std::string& name,
                 const std::string& datatype, const std::vector<int64_t>& shape,
                 const std::string& bytes);

// FP32: Q [2, 4, 3, 8], K and V [2, 2, 5, 8], in this order.
inference::ModelInferRequest DenseInfer();
// FP16: Q [7, 4, 8], K and V [9, 2, 8], CU_SEQLENS_Q, CU_SEQLENS_K; three sequences.
inference::ModelInferRequest PackedInfer();

// Serialized ModelInferRequests, or what a broken client makes of one. Names are unique.
std::vector<MalformedCase> MalformedInferCases();

}  // namespace attnd::testing

#endif  // ATTND_TESTS_WIRE_KSERVE_CASES_H_
