#include "tests/wire/kserve_cases.h"

#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/wire/messages.h"

namespace attnd::testing {
namespace {

using absl::StrCat;
using google::protobuf::RepeatedField;
using inference::InferParameter;
using inference::ModelInferRequest;
using Spoil = std::function<void(ModelInferRequest&)>;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

const char* DatatypeOf(v1::DataType dtype) {
  if (dtype == v1::DATA_TYPE_FLOAT16) return "FP16";
  return dtype == v1::DATA_TYPE_BFLOAT16 ? "BF16" : "FP32";
}

std::string BytesOf(const RepeatedField<int64_t>& values) {
  return {reinterpret_cast<const char*>(values.data()),
          static_cast<size_t>(values.size()) * sizeof(int64_t)};
}

std::string BytesOfInts(const std::vector<int64_t>& values) {
  return BytesOf(RepeatedField<int64_t>(values.begin(), values.end()));
}

void AddParameters(const v1::ComputeHeader& header, ModelInferRequest& request) {
  auto& parameters = *request.mutable_parameters();
  if (header.causal() == v1::CAUSAL_ALIGNMENT_TOP_LEFT) {
    parameters["causal"].set_string_param("top_left");
  } else if (header.causal() == v1::CAUSAL_ALIGNMENT_BOTTOM_RIGHT) {
    parameters["causal"].set_bool_param(true);
  }
  const v1::Window& window = header.window();
  if (window.has_left()) parameters["window_left"].set_int64_param(window.left());
  if (window.has_right()) parameters["window_right"].set_int64_param(window.right());
  if (header.has_scale()) parameters["scale"].set_double_param(header.scale());
  if (header.has_softcap()) parameters["softcap"].set_double_param(header.softcap());
  if (header.priority() != 0) parameters["priority"].set_uint64_param(header.priority());
  if (header.has_timeout_us()) parameters["timeout"].set_int64_param(header.timeout_us());
}

ModelInferRequest::InferInputTensor& Input(ModelInferRequest& request, int index) {
  return *request.mutable_inputs(index);
}

class Table {
 public:
  void Add(const std::string& name, ModelInferRequest request, const Spoil& spoil,
           std::vector<std::string> substrings, absl::StatusCode code = kInvalid) {
    spoil(request);
    AddBytes(name, request.SerializeAsString(), std::move(substrings), code);
  }
  void Dense(const std::string& name, const Spoil& spoil, std::vector<std::string> substrings,
             absl::StatusCode code = kInvalid) {
    Add(name, DenseInfer(), spoil, std::move(substrings), code);
  }
  void Packed(const std::string& name, const Spoil& spoil, std::vector<std::string> substrings) {
    Add(name, PackedInfer(), spoil, std::move(substrings));
  }
  void Parameter(const std::string& name, const std::function<void(InferParameter&)>& set,
                 const std::string& value) {
    Dense(StrCat("parameter ", name, " is ", value),
          [&](ModelInferRequest& r) { set((*r.mutable_parameters())[name]); },
          {StrCat("parameter ", name), value});
  }
  void AddBytes(const std::string& name, const std::string& bytes,
                std::vector<std::string> substrings, absl::StatusCode code = kInvalid) {
    cases_.push_back({name, bytes, code, std::move(substrings)});
  }
  std::vector<MalformedCase> Take() { return std::move(cases_); }

 private:
  std::vector<MalformedCase> cases_;
};

void AddModels(Table& table) {
  constexpr auto kNotFound = absl::StatusCode::kNotFound;
  const auto name = [](std::string n) { return [n](auto& r) { r.set_model_name(n); }; };
  const auto version = [](const char* v) { return [v](auto& r) { r.set_model_version(v); }; };
  table.Dense("another model", name("resnet"), {"resnet", "attention", "\"1\""}, kNotFound);
  table.Dense("no model", name(""), {"\"\"", "attention"}, kNotFound);
  table.Dense("another version", version("2"), {"\"2\"", "attention", "\"1\""}, kNotFound);
  table.Dense("a long name", name(std::string(5000, 'x')), {"..."}, kNotFound);
}

void AddParameterCases(Table& table) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const auto text = [](const char* t) { return [t](auto& p) { p.set_string_param(t); }; };
  const auto integer = [](int64_t i) { return [i](auto& p) { p.set_int64_param(i); }; };
  const auto number = [](double d) { return [d](auto& p) { p.set_double_param(d); }; };
  const auto flag = [](bool b) { return [b](auto& p) { p.set_bool_param(b); }; };
  const auto nothing = [](auto&) {};
  table.Parameter("causal", text("sideways"), "\"sideways\"");
  table.Parameter("causal", integer(2), "2");
  table.Parameter("causal", number(0.5), "0.5");
  table.Parameter("causal", nothing, "without a value");
  for (const char* side : {"window_left", "window_right"}) {
    table.Parameter(side, integer(-1), "-1");
    table.Parameter(side, number(1.5), "1.5");
    table.Parameter(side, text("wide"), "\"wide\"");
    table.Parameter(side, flag(true), "true");
  }
  table.Parameter("priority", integer(10), "10");
  table.Parameter("priority", integer(-1), "-1");
  table.Parameter("timeout", integer(-5), "-5");
  table.Parameter("timeout", text("soon"), "\"soon\"");
  table.Parameter("scale", text("big"), "\"big\"");
  table.Parameter("sequence_id", integer(7), "7");
  table.Parameter("sequence_id", text("a"), "\"a\"");
  table.Parameter("sequence_start", flag(true), "true");
  table.Parameter("sequence_end", flag(true), "true");
  table.Parameter("binary_data_output", text("perhaps"), "\"perhaps\"");
  table.Dense(
      "uint64 beyond int64",
      [](auto& r) { (*r.mutable_parameters())["window_left"].set_uint64_param(UINT64_MAX); },
      {"parameter window_left", "18446744073709551615"});
  for (const double value : {nan, inf, 0.0, -1.0}) {
    table.Dense(StrCat("scale ", value),
                [&](auto& r) { (*r.mutable_parameters())["scale"].set_double_param(value); },
                {"scale is", "finite"});
  }
  for (const double value : {nan, inf, -1.0}) {
    table.Dense(StrCat("softcap ", value),
                [&](auto& r) { (*r.mutable_parameters())["softcap"].set_double_param(value); },
                {"softcap is", "finite"});
  }
  table.Dense("S9 unknown parameters, the first by name",
              [](auto& r) {
                (*r.mutable_parameters())["temperature"].set_double_param(1);
                (*r.mutable_parameters())["dropout"].set_double_param(1);
              },
              {"parameter \"dropout\"", "causal"});
  table.Dense("S9 unknown parameters, one without a name",
              [](auto& r) {
                (*r.mutable_parameters())[""].set_double_param(1);
                (*r.mutable_parameters())["alpha"].set_double_param(1);
              },
              {"parameter \"\"", "causal"});
}

void AddInputCases(Table& table) {
  for (int i = 0; i < 3; ++i) {
    const std::string name = i == 0 ? "Q" : i == 1 ? "K" : "V";
    table.Dense(StrCat("no ", name),
                [&](auto& r) {
                  r.mutable_inputs()->DeleteSubrange(i, 1);
                  r.mutable_raw_input_contents()->DeleteSubrange(i, 1);
                },
                {"input", name, "missing"});
    table.Dense(StrCat("another name for ", name), [&](auto& r) { Input(r, i).set_name("QUERY"); },
                {"\"QUERY\"", "CU_SEQLENS_Q"});
    for (const char* datatype : {"FP64", "INT8", "", "fp32"}) {
      table.Dense(StrCat(name, " of datatype ", datatype),
                  [&](auto& r) { Input(r, i).set_datatype(datatype); },
                  {StrCat("input ", name), StrCat("\"", datatype, "\""), "BF16"});
    }
    table.Dense(StrCat(name, " with an extent below 0"),
                [&](auto& r) { Input(r, i).set_shape(0, -2); }, {StrCat(name, ".shape[0]"), "-2"});
    table.Dense(
        StrCat(name, " short of a byte"),
        [&](auto& r) { r.mutable_raw_input_contents(i)->pop_back(); },
        {StrCat(name, " has ", (i == 0 ? 768 : 640) - 1), "FP32", StrCat(i == 0 ? 768 : 640)});
    table.Dense(StrCat(name, " with a parameter that there is not"),
                [&](auto& r) { (*Input(r, i).mutable_parameters())["stride"].set_int64_param(1); },
                {StrCat("input \"", name, "\""), "\"stride\""});
    table.Dense(StrCat(name, " in shared memory without a size"),
                [&](auto& r) {
                  (*Input(r, i).mutable_parameters())["shared_memory_region"].set_string_param("r");
                },
                {StrCat("input \"", name, "\""), "shared_memory_byte_size"});
  }
  table.Dense("Q twice", [](auto& r) { AddRawInput(r, "Q", "FP32", {1}, "1234"); },
              {"input \"Q\"", "twice"});
  table.Dense("K of another datatype", [](auto& r) { Input(r, 1).set_datatype("FP16"); },
              {"input K", "FP16", "input Q", "FP32"});
  table.Dense("Q of rank 3", [](auto& r) { Input(r, 0).mutable_shape()->RemoveLast(); },
              {"input Q", "[2, 4, 3]", "rank 3", "CU_SEQLENS_Q"});
  table.Dense("K of rank 2", [](auto& r) { Input(r, 1).mutable_shape()->Truncate(2); },
              {"K.shape", "rank 2"});
  table.Dense("V longer than K", [](auto& r) { Input(r, 2).set_shape(2, 6); },
              {"K and V", "[2, 2, 5, 8]", "[2, 2, 6, 8]"});
  table.Dense("S2 a size that overflows",
              [](auto& r) {
                Input(r, 0).set_shape(0, int64_t{1} << 40);
                Input(r, 0).set_shape(2, int64_t{1} << 40);
              },
              {"Q.shape", "overflows", "FP32"});
  table.Dense("an id that is too long", [](auto& r) { r.set_id(std::string(129, 'i')); },
              {"id is 129", "128"});
}

void AddContentCases(Table& table) {
  table.Dense("raw contents of two inputs of three",
              [](auto& r) { r.mutable_raw_input_contents()->RemoveLast(); },
              {"raw_input_contents", "2 entries", "3 inputs"});
  table.Dense("raw contents of four inputs of three",
              [](auto& r) { r.add_raw_input_contents("xx"); },
              {"raw_input_contents", "4 entries", "3 inputs"});
  table.Dense("raw contents without end",
              [](auto& r) {
                for (int i = 0; i < 100; ++i) r.add_raw_input_contents("xx");
              },
              {"raw_input_contents", "at least 6", "5"});
  table.Dense("raw contents and a list",
              [](auto& r) { Input(r, 1).mutable_contents()->add_fp32_contents(1); },
              {"input \"K\"", "contents", "raw_input_contents"});
  table.Dense("no contents at all", [](auto& r) { r.clear_raw_input_contents(); },
              {"Q has 0 bytes", "FP32", "768"});
  table.Dense("a list that is too short",
              [](auto& r) {
                r.clear_raw_input_contents();
                for (int i = 0; i < 3; ++i) Input(r, i).mutable_contents()->add_fp32_contents(1);
              },
              {"Q has 4 bytes", "768"});
  table.Dense("a list of another type",
              [](auto& r) {
                r.clear_raw_input_contents();
                for (int i = 0; i < 3; ++i) Input(r, i).mutable_contents()->add_fp64_contents(1);
              },
              {"input \"Q\"", "FP32", "fp32_contents"});
  table.Packed("a list for FP16",
               [](auto& r) {
                 r.clear_raw_input_contents();
                 Input(r, 0).mutable_contents()->add_fp32_contents(1);
               },
               {"input \"Q\"", "FP16", "raw_input_contents"});
  table.Dense("lists beyond the header's limit",
              [](auto& r) {
                r.clear_raw_input_contents();
                auto& list = *Input(r, 0).mutable_contents()->mutable_fp32_contents();
                list.Resize(300'000, 1.0f);
              },
              {"max_header_bytes", "send tensors in raw_input_contents"});
  for (const char* output : {"P", "o", ""}) {
    table.Dense(StrCat("output ", output), [&](auto& r) { r.add_outputs()->set_name(output); },
                {StrCat("output \"", output, "\""), "O, LSE"});
  }
  table.Dense("output O twice",
              [](auto& r) {
                r.add_outputs()->set_name("O");
                r.add_outputs()->set_name("O");
              },
              {"output \"O\"", "twice"});
  table.Dense("an output in classes",
              [](auto& r) {
                auto& output = *r.add_outputs();
                output.set_name("O");
                (*output.mutable_parameters())["classification"].set_int64_param(3);
              },
              {"output \"O\"", "classification", "3"});
}

void AddPackedCases(Table& table) {
  table.Packed("CU_SEQLENS_Q alone",
               [](auto& r) {
                 r.mutable_inputs()->RemoveLast();
                 r.mutable_raw_input_contents()->RemoveLast();
               },
               {"CU_SEQLENS_Q", "CU_SEQLENS_K is not"});
  table.Packed("CU_SEQLENS_Q of FP32", [](auto& r) { Input(r, 3).set_datatype("FP32"); },
               {"CU_SEQLENS_Q", "FP32", "INT32"});
  table.Packed("CU_SEQLENS_Q of rank 2", [](auto& r) { Input(r, 3).add_shape(1); },
               {"CU_SEQLENS_Q", "[4, 1]", "sequences + 1"});
  table.Packed("CU_SEQLENS_Q longer than its bytes", [](auto& r) { Input(r, 3).set_shape(0, 5); },
               {"CU_SEQLENS_Q", "32 bytes", "40"});
  table.Packed("CU_SEQLENS_Q beyond the limit", [](auto& r) { Input(r, 3).set_shape(0, 1 << 20); },
               {"CU_SEQLENS_Q", "[1048576]", "[65537]"});
  table.Packed("CU_SEQLENS_Q below 0", [](auto& r) { Input(r, 3).set_shape(0, -4); },
               {"CU_SEQLENS_Q", "[-4]"});
  table.Packed("CU_SEQLENS_K that falls",
               [](auto& r) {
                 r.set_raw_input_contents(4, BytesOfInts({0, 6, 4, 9}));
               },
               {"CU_SEQLENS_K[2] is 4", "6"});
  table.Packed("CU_SEQLENS_K that ends early",
               [](auto& r) {
                 r.set_raw_input_contents(4, BytesOfInts({0, 4, 6, 8}));
               },
               {"CU_SEQLENS_K[3]", "8", "K.shape[0] is 9"});
  table.Packed("CU_SEQLENS of two lengths",
               [](auto& r) {
                 Input(r, 4).set_shape(0, 3);
                 r.set_raw_input_contents(4, BytesOfInts({0, 4, 9}));
               },
               {"CU_SEQLENS_Q has 4", "CU_SEQLENS_K has 3"});
  table.Packed("packed Q of rank 4", [](auto& r) { Input(r, 0).add_shape(1); },
               {"input Q", "rank 4"});
}

void AddBrokenBytes(Table& table) {
  const std::string good = DenseInfer().SerializeAsString();
  table.AddBytes("no protobuf", "\xff", {"not a ModelInferRequest"});
  table.AddBytes("cut short", good.substr(0, good.size() - 1),
                 {"not a ModelInferRequest", "raw_input_contents"});
  table.AddBytes("S56 an unknown field", good + VarintField(99, 1), {"field 99"}, kUnimplemented);
  table.AddBytes("S56 an unknown field of an input", good + BytesField(5, VarintField(77, 1)),
                 {"inputs field 77"}, kUnimplemented);
  table.AddBytes("S56 unknown fields of two parameters, the first by number",
                 good + BytesField(4, BytesField(1, "scale") + BytesField(2, VarintField(78, 1))) +
                     BytesField(4, BytesField(1, "causal") + BytesField(2, VarintField(77, 1))),
                 {"parameters.value field 77"}, kUnimplemented);
  table.AddBytes("a name that is no UTF-8", good + BytesField(1, "\xff\xfe"), {"not valid UTF-8"});
  table.AddBytes("a header beyond its limit", good + BytesField(2000, std::string(2 << 20, 'h')),
                 {"max_header_bytes"});
}

}  // namespace

void AddRawInput(ModelInferRequest& request, const std::string& name, const std::string& datatype,
                 const std::vector<int64_t>& shape, const std::string& bytes) {
  ModelInferRequest::InferInputTensor& input = *request.add_inputs();
  input.set_name(name);
  input.set_datatype(datatype);
  input.mutable_shape()->Add(shape.begin(), shape.end());
  request.add_raw_input_contents(bytes);
}

ModelInferRequest InferRequestOf(const v1::ComputeRequest& from) {
  const v1::ComputeHeader& header = from.header();
  ModelInferRequest request;
  request.set_model_name("attention");
  request.set_id(header.request_id());
  AddParameters(header, request);
  const struct {
    const char* name;
    const v1::TensorSpec& spec;
    const std::string& bytes;
  } tensors[] = {
      {"Q", header.q(), from.q()}, {"K", header.k(), from.k()}, {"V", header.v(), from.v()}};
  for (const auto& tensor : tensors) {
    AddRawInput(request, tensor.name, DatatypeOf(tensor.spec.dtype()),
                {tensor.spec.shape().begin(), tensor.spec.shape().end()}, tensor.bytes);
  }
  if (header.layout() == v1::LAYOUT_THD) {
    AddRawInput(request, "CU_SEQLENS_Q", "INT64", {header.cu_seqlens_q_size()},
                BytesOf(header.cu_seqlens_q()));
    AddRawInput(request, "CU_SEQLENS_K", "INT64", {header.cu_seqlens_kv_size()},
                BytesOf(header.cu_seqlens_kv()));
  }
  request.add_outputs()->set_name("O");
  if (header.want_lse()) request.add_outputs()->set_name("LSE");
  return request;
}

ModelInferRequest DenseInfer() {
  ModelInferRequest request = InferRequestOf(DenseRequest());
  request.clear_outputs();
  return request;
}

ModelInferRequest PackedInfer() {
  ModelInferRequest request = InferRequestOf(PackedRequest());
  request.clear_outputs();
  return request;
}

std::vector<MalformedCase> MalformedInferCases() {
  Table table;
  AddModels(table);
  AddParameterCases(table);
  AddInputCases(table);
  AddContentCases(table);
  AddPackedCases(table);
  AddBrokenBytes(table);
  return table.Take();
}

}  // namespace attnd::testing
