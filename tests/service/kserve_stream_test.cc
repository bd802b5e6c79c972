// ModelStreamInfer: many requests on one stream, answered in their order, whatever becomes of each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/services/kserve_stream_call.h"
#include "tests/service/kserve_calls.h"
#include "tests/wire/kserve_cases.h"

namespace attnd::testing {
namespace {

using inference::ModelInferRequest;
using inference::ModelStreamInferResponse;
using server::KserveStreamCall;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMaxTurns = KserveStreamCall::kMaxTurns;

class InferStream {
 public:
  explicit InferStream(const TestServer& server,
                       const CallOptions& options = {.declare = CallOptions::Declare::kNothing})
      : stream_(server.channel(), kModelStreamInfer, options) {}

  bool Send(const ModelInferRequest& request) { return stream_.Write(request.SerializeAsString()); }
  // One that says that it ended, at the end.
  ModelStreamInferResponse Next() {
    std::string bytes;
    ModelStreamInferResponse response;
    if (!stream_.Read(&bytes)) {
      response.set_error_message("(end)");
    } else {
      EXPECT_TRUE(response.ParseFromString(bytes));
    }
    return response;
  }
  RawStream& raw() { return stream_; }

 private:
  RawStream stream_;
};

// With this id.
ModelInferRequest WithId(const v1::ComputeRequest& request, const std::string& id) {
  ModelInferRequest message = InferRequestOf(request);
  message.set_id(id);
  return message;
}

::testing::AssertionResult IsAnswer(const ModelStreamInferResponse& response, const std::string& id,
                                    const v1::ComputeRequest& request) {
  if (!response.error_message().empty()) {
    return ::testing::AssertionFailure() << response.error_message();
  }
  if (response.infer_response().id() != id) {
    return ::testing::AssertionFailure() << "id is " << response.infer_response().id();
  }
  return IsRight(AsCompute(grpc::Status::OK, response.infer_response()), request);
}

void ExpectBalance(TestServer& server, int64_t requests) {
  EXPECT_TRUE(Eventually([&] { return server->metrics().finished() == requests; }))
      << server->metrics().finished();
  EXPECT_EQ(server->metrics().received(), requests);
}

double Finished(const TestServer& server, const std::string& code, const std::string& stage) {
  return server.Metric(
      absl::StrCat("attnd_requests_finished_total{code=\"", code, "\",stage=\"", stage, "\"}"));
}

TEST(KserveStream, AnswersComeInOrderAndHaveTheBitsOfCompute) {
  TestServer server;
  std::vector<v1::ComputeRequest> requests;
  for (int i = 0; i < 40; ++i) {
    requests.push_back(MakeRequest({.q_len = 1 + 37 * (i % 5), .kv_len = 3 + i}, 100 + i));
  }
  InferStream stream(server);
  std::thread sender([&] {
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(stream.Send(WithId(requests[i], absl::StrCat(i))));
    }
  });
  sender.join();
  stream.raw().WritesDone();
  for (size_t i = 0; i < requests.size(); ++i) {
    const ModelStreamInferResponse response = stream.Next();
    ASSERT_TRUE(IsAnswer(response, absl::StrCat(i), requests[i]));
    EXPECT_EQ(response.infer_response().raw_output_contents(0),
              server.Compute(requests[i]).response.o());
  }
  EXPECT_EQ(stream.Next().error_message(), "(end)");
  EXPECT_TRUE(stream.raw().Finish().ok());
  EXPECT_EQ(stream.raw().Trailers().count("attnd-version"), 1u);
  ExpectBalance(server, 80);
  EXPECT_EQ(server.Metric("attnd_calls_total{transport=\"stream\"}"), 40);
}

TEST(KserveStream, OneThatIsDoneFirstWaitsForItsTurn) {
  auto device = std::make_unique<GatedDevice>();
  GatedDevice& gate = *device;
  server::ServerOptions options = TestOptions();
  options.scheduler.max_batch_problems = 1;
  const TestServer server(options, std::move(device));
  const v1::ComputeRequest request = MakeRequest({});
  gate.Hold();
  const auto blocker = server.Begin(request);
  gate.WaitUntilHeld();
  InferStream stream(server);
  v1::ComputeRequest late = request, early = request;
  late.mutable_header()->set_priority(9);
  early.mutable_header()->set_priority(1);
  stream.Send(WithId(late, "late"));
  stream.Send(WithId(early, "early"));
  ASSERT_TRUE(Eventually([&] { return server.Metric("attnd_queue_requests") == 2; }));
  gate.Release();
  EXPECT_TRUE(IsAnswer(stream.Next(), "late", late));
  EXPECT_TRUE(IsAnswer(stream.Next(), "early", early));
  std::vector<std::string> ran = gate.ran();
  ran.erase(ran.begin(), ran.end() - 3);  // the warm-up
  EXPECT_THAT(ran, ::testing::ElementsAre("", "early", "late"));
}

TEST(KserveStream, AFailureIsAnsweredInItsTurnAndTheStreamGoesOn) {
  TestServer server;
  const v1::ComputeRequest request = MakeRequest({});
  InferStream stream(server);
  int64_t calls = 0;
  for (const MalformedCase& malformed : MalformedInferCases()) {
    SCOPED_TRACE(malformed.name);
    if (malformed.bytes.size() > (size_t{1} << 20)) continue;  // beyond what was declared
    ASSERT_TRUE(stream.raw().Write(malformed.bytes));
    ASSERT_TRUE(stream.Send(WithId(request, "good")));
    const ModelStreamInferResponse refused = stream.Next();
    EXPECT_THAT(refused.error_message(), HasSubstr(absl::StatusCodeToString(malformed.code)));
    for (const std::string& part : malformed.substrings) {
      EXPECT_THAT(refused.error_message(), HasSubstr(part));
    }
    ASSERT_TRUE(IsAnswer(stream.Next(), "good", request));
    calls += 2;
  }
  ExpectBalance(server, calls);
  EXPECT_EQ(Finished(server, "OK", "done"), static_cast<double>(calls / 2));
}

TEST(KserveStream, AFailureHasItsRequestsId) {
  const TestServer server;
  InferStream stream(server);
  ModelInferRequest bad = WithId(MakeRequest({}), "the bad one");
  bad.mutable_inputs(0)->set_shape(0, -1);
  stream.Send(bad);
  const ModelStreamInferResponse response = stream.Next();
  EXPECT_THAT(response.error_message(), AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("Q")));
  EXPECT_EQ(response.infer_response().id(), "the bad one");
}

TEST(KserveStream, SoManyAreUnderWayAndNoMore) {
  auto device = std::make_unique<GatedDevice>();
  GatedDevice& gate = *device;
  TestServer server(TestOptions(), std::move(device));
  const v1::ComputeRequest request = MakeRequest({});
  gate.Hold();
  InferStream stream(server);
  constexpr int kRequests = 30;  // what is not read yet fits the stream's window
  std::thread sender([&] {
    for (int i = 0; i < kRequests; ++i) stream.Send(WithId(request, absl::StrCat(i)));
    stream.raw().WritesDone();
  });
  ASSERT_TRUE(Eventually([&] { return server->metrics().received() == kMaxTurns; }));
  sender.join();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(server->metrics().received(), kMaxTurns);
  gate.Release();
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(IsAnswer(stream.Next(), absl::StrCat(i), request)) << i;
  }
  EXPECT_TRUE(stream.raw().Finish().ok());
  ExpectBalance(server, kRequests);
}

TEST(KserveStream, CancelledEachEndsOnce) {
  auto device = std::make_unique<GatedDevice>();
  GatedDevice& gate = *device;
  TestServer server(TestOptions(), std::move(device));
  const v1::ComputeRequest request = MakeRequest({});
  gate.Hold();
  {
    InferStream stream(server);
    for (int i = 0; i < 5; ++i) stream.Send(WithId(request, absl::StrCat(i)));
    ASSERT_TRUE(Eventually([&] { return server->metrics().received() == 5; }));
    stream.raw().Cancel();
    EXPECT_EQ(stream.raw().Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  gate.Release();
  ExpectBalance(server, 5);
  const Outcome next = server.Compute(request);
  EXPECT_TRUE(IsRight(next, request));
  EXPECT_TRUE(server->Drain()) << "nothing is left inside";
}

TEST(KserveStream, TheTimeoutIsEachRequestsOwn) {
  auto device = std::make_unique<GatedDevice>();
  GatedDevice& gate = *device;
  const TestServer server(TestOptions(), std::move(device));
  const v1::ComputeRequest request = MakeRequest({});
  gate.Hold();
  const auto blocker = server.Begin(request);
  gate.WaitUntilHeld();
  InferStream stream(server);
  ModelInferRequest hasty = WithId(request, "hasty");
  (*hasty.mutable_parameters())["timeout"].set_int64_param(20'000);
  stream.Send(hasty);
  stream.Send(WithId(request, "patient"));
  EXPECT_THAT(stream.Next().error_message(), HasSubstr("DEADLINE_EXCEEDED"));
  gate.Release();
  EXPECT_TRUE(IsAnswer(stream.Next(), "patient", request));
}

TEST(KserveStream, GrpcsDeadlineIsTheStreams) {
  TestServer server;
  InferStream stream(server, {.timeout = std::chrono::milliseconds(100),
                              .declare = CallOptions::Declare::kNothing});
  EXPECT_EQ(stream.Next().error_message(), "(end)");
  EXPECT_EQ(stream.raw().Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(server->Drain());
}

TEST(KserveStream, AnIdleOneEndsWhenTheServerDrains) {
  TestServer server;
  const v1::ComputeRequest request = MakeRequest({});
  InferStream stream(server), unused(server);
  stream.Send(WithId(request, "before"));
  ASSERT_TRUE(IsAnswer(stream.Next(), "before", request));
  EXPECT_TRUE(server->Drain());
  for (InferStream* idle : {&stream, &unused}) {
    EXPECT_EQ(idle->Next().error_message(), "(end)");
    const grpc::Status status = idle->raw().Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("draining"));
  }
  InferStream late(server);
  EXPECT_EQ(late.Next().error_message(), "(end)");
  EXPECT_EQ(late.raw().Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(KserveStream, S39ADrainAnswersWhatIsUnderWay) {
  auto device = std::make_unique<GatedDevice>();
  GatedDevice& gate = *device;
  TestServer server(TestOptions(), std::move(device));
  const v1::ComputeRequest request = MakeRequest({});
  gate.Hold();
  InferStream stream(server);
  for (int i = 0; i < 3; ++i) stream.Send(WithId(request, absl::StrCat(i)));
  ASSERT_TRUE(Eventually([&] { return server->metrics().received() == 3; }));
  std::thread drain([&] { EXPECT_TRUE(server->Drain()); });
  ASSERT_TRUE(Eventually([&] { return server->readiness() == server::Readiness::kDraining; }));
  gate.Release();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(IsAnswer(stream.Next(), absl::StrCat(i), request));
  EXPECT_EQ(stream.Next().error_message(), "(end)");
  EXPECT_EQ(stream.raw().Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  drain.join();
  ExpectBalance(server, 3);
}

TEST(KserveStream, MessagesAreAsLargeAsDeclared) {
  TestServer server;
  // Of 64 MiB for all that is received a stream that declares nothing has 1 MiB.
  const v1::ComputeRequest large = MakeRequest({.q_len = 10'000, .kv_len = 8, .head_dim = 64});
  const v1::ComputeRequest small = MakeRequest({});
  const size_t size = InferRequestOf(large).ByteSizeLong() + 16;
  InferStream undeclared(server);
  undeclared.Send(WithId(large, "large"));
  undeclared.Send(WithId(small, "small"));
  EXPECT_THAT(undeclared.Next().error_message(),
              AllOf(HasSubstr("attnd-request-bytes"), HasSubstr("1048576")));
  EXPECT_TRUE(IsAnswer(undeclared.Next(), "small", small));

  InferStream declared(
      server, {.declare = CallOptions::Declare::kText, .declared_text = absl::StrCat(size)});
  for (int i = 0; i < 3; ++i) {
    declared.Send(WithId(large, "large"));
    EXPECT_TRUE(IsAnswer(declared.Next(), "large", large));
  }
  InferStream nonsense(server, {.declare = CallOptions::Declare::kText, .declared_text = "many"});
  EXPECT_EQ(nonsense.Next().error_message(), "(end)");
  EXPECT_EQ(nonsense.raw().Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(KserveStream, IdleOnesLeaveHalfOfTheMemoryToCalls) {
  TestServer server;
  const CallOptions declared{.declare = CallOptions::Declare::kText,
                             .declared_text = absl::StrCat(8 << 20)};
  const v1::ComputeRequest request = MakeRequest({});
  std::vector<std::unique_ptr<InferStream>> idle;
  for (int i = 0; i < 4; ++i) {
    idle.push_back(std::make_unique<InferStream>(server, declared));
    idle.back()->Send(WithId(request, "first"));
    ASSERT_TRUE(IsAnswer(idle.back()->Next(), "first", request));
  }
  InferStream refused(server, declared);
  EXPECT_EQ(refused.Next().error_message(), "(end)");
  const grpc::Status status = refused.raw().Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("33554432"), HasSubstr("8388608")));
  EXPECT_EQ(refused.raw().Trailers().count("grpc-retry-pushback-ms"), 1u);
  // A call that declares nothing takes the whole unary limit, 32 MiB.
  EXPECT_TRUE(
      IsRight(server.Compute(request, {.declare = CallOptions::Declare::kNothing}), request));
  idle.clear();
  EXPECT_TRUE(Eventually([&] { return server.Metric("attnd_receive_used_bytes") == 0; }));
  InferStream next(server, declared);
  next.Send(WithId(request, "next"));
  EXPECT_TRUE(IsAnswer(next.Next(), "next", request));
}

TEST(KserveStream, S53AnswersThatNobodyReadsStopNothingElse) {
  const TestServer server;
  const v1::ComputeRequest large = MakeRequest({.q_len = 1500, .kv_len = 8, .head_dim = 64});
  InferStream unread(server);
  for (int i = 0; i < 20; ++i) unread.Send(WithId(large, absl::StrCat(i)));
  const v1::ComputeRequest request = MakeRequest({});
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(IsRight(server.Compute(request), request));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(IsAnswer(unread.Next(), absl::StrCat(i), large));
}

TEST(KserveStream, ManyAtOnce) {
  TestServer server;
  constexpr int kStreams = 12, kRequests = 60;
  const v1::ComputeRequest request = MakeRequest({.q_len = 3, .kv_len = 30});
  std::vector<std::thread> callers;
  for (int s = 0; s < kStreams; ++s) {
    callers.emplace_back([&, s] {
      InferStream stream(server);
      ModelInferRequest bad = WithId(request, "bad");
      bad.set_model_name("none");
      int read = 0;
      for (int i = 0; i < kRequests; ++i) {
        stream.Send(i % 7 == 3 ? bad : WithId(request, absl::StrCat(i)));
        if (s % 3 == 0 && i == kRequests / 2) return;  // leaves in the middle
        if (i - read < s) continue;
        const ModelStreamInferResponse response = stream.Next();
        EXPECT_EQ(response.infer_response().id(), read % 7 == 3 ? "bad" : absl::StrCat(read));
        ++read;
      }
      stream.raw().WritesDone();
      for (; read < kRequests; ++read) {
        const ModelStreamInferResponse response = stream.Next();
        EXPECT_EQ(response.infer_response().id(), read % 7 == 3 ? "bad" : absl::StrCat(read));
      }
      EXPECT_TRUE(stream.raw().Finish().ok());
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(Eventually([&] { return server.Metric("attnd_receive_used_bytes") == 0; }));
  EXPECT_TRUE(server->Drain());
  EXPECT_EQ(server->metrics().received(), server->metrics().finished());
}

TEST(KserveStatistics, CountWhatWasComputedByEitherApi) {
  TestServer server;
  const v1::ComputeRequest request = MakeRequest({});
  InferStream stream(server);
  for (int i = 0; i < 3; ++i) {
    stream.Send(WithId(request, "streamed"));
    ASSERT_TRUE(IsAnswer(stream.Next(), "streamed", request));
  }
  EXPECT_TRUE(server.Compute(request).status.ok());
  EXPECT_TRUE(Infer(server, InferRequestOf(request)).status.ok());
  ModelInferRequest bad = InferRequestOf(request);
  bad.set_model_name("none");
  EXPECT_FALSE(Infer(server, bad).status.ok());

  const auto stub = inference::GRPCInferenceService::NewStub(server.channel());
  inference::ModelStatisticsRequest asked;
  for (const char* name : {"", "attention"}) {
    grpc::ClientContext context;
    asked.set_name(name);
    inference::ModelStatisticsResponse response;
    ASSERT_TRUE(stub->ModelStatistics(&context, asked, &response).ok());
    ASSERT_EQ(response.model_stats_size(), 1);
    const inference::ModelStatistics& model = response.model_stats(0);
    EXPECT_EQ(model.name(), "attention");
    EXPECT_EQ(model.version(), "1");
    EXPECT_EQ(model.inference_count(), 5u);
    EXPECT_EQ(model.execution_count(), 5u);
    EXPECT_GT(model.last_inference(), 1'700'000'000'000u);
    const inference::InferStatistics& stats = model.inference_stats();
    EXPECT_EQ(stats.success().count(), 5u);
    EXPECT_GT(stats.success().ns(), 0u);
    EXPECT_EQ(stats.fail().count(), 1u);
    EXPECT_EQ(stats.queue().count(), 5u);
    EXPECT_EQ(stats.compute_infer().count(), 5u);
    EXPECT_LE(stats.queue().ns() + stats.compute_infer().ns(), stats.success().ns() + 10'000);
    ASSERT_EQ(model.batch_stats_size(), 1);
    EXPECT_EQ(model.batch_stats(0).batch_size(), 1u);
    EXPECT_EQ(model.batch_stats(0).compute_infer().count(), 5u);
  }
  grpc::ClientContext context;
  asked.set_name("another");
  inference::ModelStatisticsResponse response;
  EXPECT_EQ(stub->ModelStatistics(&context, asked, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace attnd::testing
