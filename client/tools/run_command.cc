#include "client/tools/run_command.h"

#include <cstdio>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/client.h"
#include "client/tools/run_report.h"
#include "client/tools/tensor_file.h"
#include "client/tools/tool.h"
#include "client/tools/verify.h"

namespace attnd::tools {
namespace {

// A request and the memory it stands on.
struct Problem {
  Tensor q;
  Tensor k;
  Tensor v;
  AttentionRequest request;
};

absl::Status ReadOperand(const Args& args, const char* name, Tensor* tensor, TensorView* view) {
  auto read = ReadTensor(*args.Get(name));
  if (!read.ok()) {
    return absl::Status(read.status().code(),
                        absl::StrCat("--", name, ": ", read.status().message()));
  }
  *tensor = *std::move(read);
  *view = tensor->view();
  return absl::OkStatus();
}

absl::Status ReadLayout(const Args& args, Layout* layout) {
  const std::string name = args.Get("layout").value_or("bhsd");
  if (name == "bhsd") {
    *layout = Layout::kBHSD;
  } else if (name == "bshd") {
    *layout = Layout::kBSHD;
  } else if (name == "thd") {
    *layout = Layout::kTHD;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--layout is \"", name, "\", must be bhsd, bshd or thd"));
  }
  return absl::OkStatus();
}

absl::Status ReadCausal(const Args& args, Causal* causal) {
  const std::string name = args.Get("causal").value_or("none");
  if (name == "none") {
    *causal = Causal::kNone;
  } else if (name == "top-left") {
    *causal = Causal::kTopLeft;
  } else if (name == "bottom-right") {
    *causal = Causal::kBottomRight;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--causal is \"", name, "\", must be bottom-right, top-left or none"));
  }
  return absl::OkStatus();
}

// "L,R", either side empty or "-" for unbounded.
absl::Status ReadWindow(const Args& args, AttentionRequest* request) {
  const auto text = args.Get("window");
  if (!text) return absl::OkStatus();
  const std::vector<std::string> sides = absl::StrSplit(*text, ',');
  bool good = sides.size() == 2;
  absl::optional<int64_t>* const bounds[2] = {&request->window_left, &request->window_right};
  for (int i = 0; good && i < 2; ++i) {
    if (sides[i].empty() || sides[i] == "-") continue;
    int64_t keys = 0;
    good = absl::SimpleAtoi(sides[i], &keys);
    *bounds[i] = keys;  // the server refuses a negative one
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--window is \"", *text, "\", must be LEFT,RIGHT in keys; a side may be empty or -"));
}

// "0,5,9" or a file of whole numbers.
absl::Status ReadSeqlens(const Args& args, const char* name, std::vector<int64_t>* seqlens) {
  const auto text = args.Get(name);
  if (!text) return absl::OkStatus();
  if (absl::EndsWith(*text, ".npy") || absl::StrContains(*text, ".safetensors")) {
    auto read = ReadIntegers(*text);
    if (!read.ok()) return read.status();
    *seqlens = *std::move(read);
    return absl::OkStatus();
  }
  for (absl::string_view part : absl::StrSplit(*text, ',')) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(part, &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " is \"", *text, "\", must be a list as 0,5,9 or a file"));
    }
    seqlens->push_back(value);
  }
  return absl::OkStatus();
}

absl::Status ReadNumbers(const Args& args, AttentionRequest* request) {
  constexpr double kMost = std::numeric_limits<float>::max();
  absl::Status status;
  const auto read_float = [&](const char* name, absl::optional<float>* to) {
    double value = 0;
    status.Update(args.Read(name, -kMost, kMost, &value));
    if (args.Has(name)) *to = static_cast<float>(value);
  };
  read_float("scale", &request->scale);
  read_float("softcap", &request->softcap);
  int64_t priority = 0;
  int64_t timeout_ms = 0;
  status.Update(args.Read("priority", 0, std::numeric_limits<int>::max(), &priority));
  status.Update(args.Read("timeout_ms", 1, int64_t{1} << 40, &timeout_ms));
  request->priority = static_cast<int>(priority);
  if (timeout_ms > 0) request->timeout = absl::Milliseconds(timeout_ms);
  return status;
}

// What stands on the command line itself: a mistake here is one of usage.
absl::Status ReadOptions(const Args& args, AttentionRequest* request) {
  absl::Status status;
  for (const char* name : {"q", "k", "v"}) {
    if (!args.Has(name)) {
      status.Update(absl::InvalidArgumentError(absl::StrCat("--", name, " is missing")));
    }
  }
  status.Update(ReadLayout(args, &request->layout));
  status.Update(ReadCausal(args, &request->causal));
  status.Update(ReadWindow(args, request));
  status.Update(ReadNumbers(args, request));
  status.Update(ReadTransport(args, &request->transport));
  status.Update(args.Read("request_id", &request->request_id));
  request->want_lse = args.Has("lse");
  return status;
}

absl::Status ReadFiles(const Args& args, Problem* problem) {
  AttentionRequest& request = problem->request;
  absl::Status status = ReadSeqlens(args, "cu_seqlens_q", &request.cu_seqlens_q);
  status.Update(ReadSeqlens(args, "cu_seqlens_kv", &request.cu_seqlens_kv));
  if (const auto slopes = args.Get("alibi")) {
    auto read = ReadFloats(*slopes);
    if (read.ok()) request.alibi_slopes = *std::move(read);
    status.Update(read.status());
  }
  status.Update(ReadOperand(args, "q", &problem->q, &request.q));
  status.Update(ReadOperand(args, "k", &problem->k, &request.k));
  status.Update(ReadOperand(args, "v", &problem->v, &request.v));
  return status;
}

absl::Status WriteOutputs(const Args& args, const AttentionResult& result) {
  absl::Status status;
  if (const auto path = args.Get("out")) {
    status.Update(WriteNpy(*path, result.o));
    if (result.o.dtype == DType::kBFloat16) {
      std::fprintf(stderr, "attnctl: %s: bfloat16 is written as float32\n", path->c_str());
    }
  }
  if (const auto path = args.Get("lse")) status.Update(WriteNpy(*path, *result.lse));
  return status;
}

int Fail(const absl::Status& status, const std::string& server, int exit_code = kFailed) {
  std::fprintf(stderr, "attnctl run: %s\n", Explain(status, server).c_str());
  return exit_code;
}

}  // namespace

std::vector<Flag> RunFlags() {
  return {
      {"server", "HOST:PORT", absl::StrCat("default ", kDefaultServer, "; or unix:/path")},
      {"q", "FILE", "file.npy or file.safetensors:name; float32, float16, bfloat16"},
      {"k", "FILE", ""},
      {"v", "FILE", ""},
      {"layout", "LAYOUT", "bhsd (default), bshd or thd"},
      {"cu_seqlens_q", "LIST", "thd: 0,5,9 or a file of whole numbers"},
      {"cu_seqlens_kv", "LIST", ""},
      {"causal", "ALIGNMENT", "bottom-right, top-left or none (default)"},
      {"window", "L,R", "keys left and right, inclusive; a side may be empty or -"},
      {"scale", "S", "default 1/sqrt(head_dim)"},
      {"softcap", "C", "default 0, off"},
      {"alibi", "FILE", "one slope per query head"},
      {"priority", "N", "1 (highest) to 9; 0, the default, counts as 5"},
      {"timeout_ms", "MS", "default none"},
      {"transport", "HOW",
       "unary, stream, region (shared memory, on one host) or auto (default): the best that the "
       "size and the server allow"},
      {"local_socket", "PATH", "the server's --local_socket; none: no shared memory"},
      {"request_id", "ID", "for the server's log"},
      {"out", "FILE", "where O goes, as .npy (bfloat16 as float32)"},
      {"lse", "FILE", "asks for LSE; where it goes, as .npy"},
      {"verify", "", "compute the answer in fp64 here; fail if the error passes its bound"},
      {"json", "", "print one JSON object"}};
}

int Run(const Args& args) {
  const std::string server = args.Get("server").value_or(kDefaultServer);
  Problem problem;
  if (absl::Status status = ReadOptions(args, &problem.request); !status.ok()) {
    return Fail(status, server, kUsage);
  }
  if (absl::Status status = ReadFiles(args, &problem); !status.ok()) return Fail(status, server);
  ClientOptions client_options;
  client_options.local_socket = args.Get("local_socket").value_or("");
  const auto client = Client::Connect(server, client_options);
  if (!client.ok()) return Fail(client.status(), server, kUsage);
  const auto result = (*client)->Attention(problem.request);
  if (!result.ok()) return Fail(result.status(), server);

  RunReport report{server, &problem.request, &*result, absl::nullopt};
  if (args.Has("verify")) {
    const auto expected = Expected::Compute(problem.request);
    if (!expected.ok()) return Fail(expected.status(), server);
    report.verification = expected->Check(*result);
  }
  const absl::Status written = WriteOutputs(args, *result);
  std::fputs((args.Has("json") ? ToJson(report) : ToTable(report)).c_str(), stdout);
  if (!written.ok()) return Fail(written, server);
  return !report.verification || report.verification->ok() ? kOk : kFailed;
}

}  // namespace attnd::tools
