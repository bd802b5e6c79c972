// The C ABI against a fake server. The functions are linked in: the shared library's protobuf would
// meet a second attnd.proto, the server's.
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "client/attnd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/sync.h"
#include "tests/client/fake_server.h"

extern "C" size_t attnd_client_sizes_in_c(int which);

namespace {

using ::attnd::testing::Echo;
using ::attnd::testing::FakeServer;
using ::testing::HasSubstr;

constexpr int64_t kSecond_us = 1000000;

// O = Q in [1, 2, 3, 4].
class ClientCApi : public ::testing::Test {
 protected:
  explicit ClientCApi(FakeServer::Handler handler = nullptr) : server_(std::move(handler)) {
    attnd_client_options options;
    attnd_client_options_init(&options, sizeof(options));
    options.local_socket = "none";
    options.max_tries = 2;
    EXPECT_EQ(
        attnd_client_connect(server_.address().c_str(), &options, &client_, error_, sizeof(error_)),
        ATTND_CLIENT_OK)
        << error_;
    attnd_client_request_init(&request_, sizeof(request_));
    request_.q = request_.k = request_.v = {q_, shape_, 4, ATTND_CLIENT_F32};
    request_.o = o_;
    std::memset(&result_, 0x5a, sizeof(result_));
    result_.struct_size_bytes = sizeof(result_);
  }
  ~ClientCApi() override { attnd_client_close(client_); }

  int Compute() { return attnd_client_compute(client_, &request_, &result_); }
  void ExpectAnswer() const {
    EXPECT_THAT(o_, ::testing::ElementsAreArray(q_));
    EXPECT_EQ(result_.code, ATTND_CLIENT_OK);
    EXPECT_STREQ(result_.message, "");
  }

  // Of the server's threads too, and so before it.
  attnd::Mutex mutex_;
  attnd::v1::ComputeHeader seen_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> held_{0};
  std::atomic<bool> released_{false};

  FakeServer server_;
  attnd_client* client_ = nullptr;
  attnd_client_request request_;
  attnd_client_result result_;
  char error_[256] = "untouched";
  const int64_t shape_[4] = {1, 2, 3, 4};
  const float q_[24] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  float o_[24] = {};
};

TEST_F(ClientCApi, ComputesWithAnAccount) {
  float lse[6] = {1, 1, 1, 1, 1, 1};
  request_.lse = lse;
  ASSERT_EQ(Compute(), ATTND_CLIENT_OK) << result_.message;
  ExpectAnswer();
  for (const float value : lse) EXPECT_EQ(value, 0);
  EXPECT_EQ(result_.tries, 1);
  EXPECT_EQ(result_.transport, ATTND_CLIENT_UNARY);
  EXPECT_EQ(result_.run_us, 7);
  EXPECT_EQ(result_.batch_size, 1);
  EXPECT_EQ(result_.has_pushback, 0);
  EXPECT_STREQ(result_.backend, "fake");
  EXPECT_STREQ(result_.kernel, "attn_fwd_f32_d64_full_fake");
  EXPECT_STREQ(result_.device, "cpu");
  EXPECT_GT(result_.sent_bytes, 3 * static_cast<int64_t>(sizeof(q_)));
  EXPECT_EQ(attnd_client_compute(client_, &request_, nullptr), ATTND_CLIENT_OK);
}

TEST_F(ClientCApi, StreamsToo) {
  request_.transport = ATTND_CLIENT_STREAM;
  ASSERT_EQ(Compute(), ATTND_CLIENT_OK) << result_.message;
  ExpectAnswer();
  EXPECT_EQ(server_.streams(), 1);
}

class SeenRequest : public ClientCApi {
 protected:
  SeenRequest()
      : ClientCApi([this](grpc::ServerContext*, const attnd::v1::ComputeRequest& request,
                          attnd::v1::ComputeResponse* response) {
          attnd::MutexLock lock(mutex_);
          seen_ = request.header();
          return Echo(request, response);
        }) {}

  attnd::v1::ComputeHeader Seen() {
    EXPECT_EQ(Compute(), ATTND_CLIENT_OK) << result_.message;
    attnd::MutexLock lock(mutex_);
    return seen_;
  }
};

TEST_F(SeenRequest, HasEveryOption) {
  const float slopes[2] = {0.5f, 0.25f};
  const int64_t q_ends[2] = {0, 3}, kv_ends[3] = {0, 1, 3};
  request_.alibi_slopes = slopes;
  request_.alibi_slopes_count = 2;
  request_.cu_seqlens_q = q_ends;
  request_.cu_seqlens_q_count = 2;
  request_.cu_seqlens_kv = kv_ends;
  request_.cu_seqlens_kv_count = 3;
  request_.window_left = 5;
  request_.window_right = -1;  // for the server to refuse
  request_.scale = 0;
  request_.softcap = 3;
  request_.given = ATTND_CLIENT_GIVEN_WINDOW_LEFT | ATTND_CLIENT_GIVEN_WINDOW_RIGHT |
                   ATTND_CLIENT_GIVEN_SCALE | ATTND_CLIENT_GIVEN_SOFTCAP;
  request_.layout = ATTND_CLIENT_BSHD;
  request_.causal = ATTND_CLIENT_CAUSAL_BOTTOM_RIGHT;
  request_.priority = 3;
  request_.request_id = "me";
  const attnd::v1::ComputeHeader seen = Seen();
  EXPECT_EQ(seen.q().shape(3), 4);
  EXPECT_EQ(seen.layout(), attnd::v1::LAYOUT_BSHD);
  EXPECT_EQ(seen.causal(), attnd::v1::CAUSAL_ALIGNMENT_BOTTOM_RIGHT);
  EXPECT_EQ(seen.window().left(), 5);
  EXPECT_EQ(seen.window().right(), -1);
  EXPECT_TRUE(seen.has_scale());
  EXPECT_EQ(seen.softcap(), 3);
  EXPECT_EQ(seen.alibi_slopes(1), 0.25f);
  EXPECT_EQ(seen.cu_seqlens_q(1), 3);
  EXPECT_EQ(seen.cu_seqlens_kv(2), 3);
  EXPECT_EQ(seen.priority(), 3);
  EXPECT_EQ(seen.request_id(), "me");
  EXPECT_FALSE(seen.want_lse());
}

TEST_F(SeenRequest, HasNoOptionThatWasNotGiven) {
  request_.scale = request_.softcap = 5;
  request_.window_left = request_.window_right = 5;
  request_.given = ATTND_CLIENT_GIVEN_WINDOW_RIGHT;
  const attnd::v1::ComputeHeader seen = Seen();
  EXPECT_FALSE(seen.has_scale());
  EXPECT_FALSE(seen.has_softcap());
  EXPECT_FALSE(seen.window().has_left());
  EXPECT_TRUE(seen.window().has_right());
}

class Refusing : public ClientCApi {
 protected:
  Refusing()
      : ClientCApi([](grpc::ServerContext* context, const attnd::v1::ComputeRequest& request,
                      attnd::v1::ComputeResponse*) {
          context->AddTrailingMetadata("attnd-version", "1");
          if (request.header().request_id() == "full") {
            context->AddTrailingMetadata("grpc-retry-pushback-ms", "1");
            return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full");
          }
          context->AddTrailingMetadata("attnd-untouched", "1");
          return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "scale is 0, must be > 0");
        }) {}
};

TEST_F(Refusing, SaysWhatTheServerSaid) {
  ASSERT_EQ(Compute(), ATTND_CLIENT_INVALID_ARGUMENT);
  EXPECT_EQ(result_.code, ATTND_CLIENT_INVALID_ARGUMENT);
  EXPECT_STREQ(result_.message, "scale is 0, must be > 0");
  EXPECT_EQ(result_.tries, 1);
  EXPECT_EQ(result_.from_server, 1);
  EXPECT_EQ(result_.untouched, 1);
  EXPECT_EQ(result_.has_pushback, 0);
  EXPECT_STREQ(result_.kernel, "");
  EXPECT_EQ(result_.run_us, 0);
  request_.request_id = "full";
  ASSERT_EQ(Compute(), ATTND_CLIENT_RESOURCE_EXHAUSTED);
  EXPECT_EQ(result_.tries, 2);
  EXPECT_EQ(result_.untouched, 0);
  EXPECT_EQ(result_.has_pushback, 1);
  EXPECT_EQ(result_.pushback_ms, 1);
}

// Whose calls wait until they are cancelled, or let go.
class Holding : public ClientCApi {
 protected:
  Holding()
      : ClientCApi([this](grpc::ServerContext* context, const attnd::v1::ComputeRequest& request,
                          attnd::v1::ComputeResponse* response) {
          ++held_;
          while (!context->IsCancelled() && !released_) std::this_thread::yield();
          return Echo(request, response);
        }) {}
  ~Holding() override { released_ = true; }

  attnd_client_call* Start() {
    attnd_client_call* call = nullptr;
    EXPECT_EQ(attnd_client_start(client_, &request_, &call, error_, sizeof(error_)),
              ATTND_CLIENT_OK)
        << error_;
    return call;
  }
};

TEST_F(Holding, ACallGoesOnByItself) {
  attnd_client_call* const call = Start();
  while (held_ == 0) std::this_thread::yield();
  EXPECT_EQ(attnd_client_wait(call, 1000, &result_), ATTND_CLIENT_RUNNING);
  EXPECT_EQ(result_.struct_size_bytes, sizeof(result_));
  released_ = true;
  EXPECT_EQ(attnd_client_wait(call, ATTND_CLIENT_NO_TIMEOUT, &result_), ATTND_CLIENT_OK);
  ExpectAnswer();
  attnd_client_release(call);
}

TEST_F(Holding, ACallThatIsWaitedForEndsToo) {
  request_.waits_at_once = 1;
  attnd_client_call* const call = Start();
  EXPECT_EQ(attnd_client_wait(call, 1000, &result_), ATTND_CLIENT_RUNNING);
  EXPECT_EQ(attnd_client_wait(call, 0, &result_), ATTND_CLIENT_RUNNING);
  released_ = true;
  EXPECT_EQ(attnd_client_wait(call, 30 * kSecond_us, &result_), ATTND_CLIENT_OK);
  ExpectAnswer();
  attnd_client_release(call);
}

TEST_F(Holding, CancelsFromAnotherThread) {
  for (const int32_t waits_at_once : {0, 1}) {
    request_.waits_at_once = waits_at_once;
    for (const int32_t transport : {ATTND_CLIENT_UNARY, ATTND_CLIENT_STREAM}) {
      request_.transport = transport;
      const int before = held_;
      attnd_client_call* const call = Start();
      std::thread canceller([&] {
        while (held_ == before) std::this_thread::yield();
        attnd_client_cancel(call);
      });
      EXPECT_EQ(attnd_client_wait(call, ATTND_CLIENT_NO_TIMEOUT, &result_), ATTND_CLIENT_CANCELLED);
      canceller.join();
      EXPECT_STREQ(result_.message, "cancelled by the caller");
      attnd_client_cancel(call);  // does nothing
      attnd_client_release(call);
    }
  }
}

TEST_F(Holding, ReleaseEndsACallThatNobodyWaitedFor) {
  for (const int32_t waits_at_once : {0, 1}) {
    request_.waits_at_once = waits_at_once;
    std::vector<float> q(1 << 18);  // gone right after it: ASan sees a late reader
    const int64_t shape[4] = {1, 1, 1 << 16, 4};
    request_.q = {q.data(), shape, 4, ATTND_CLIENT_F32};
    std::vector<float> o(q.size());
    request_.o = o.data();
    attnd_client_release(Start());
  }
}

TEST_F(Holding, ADeadlineEndsACall) {
  request_.timeout_us = 50000;
  EXPECT_EQ(Compute(), ATTND_CLIENT_DEADLINE_EXCEEDED);
  request_.timeout_us = -1;
  EXPECT_EQ(Compute(), ATTND_CLIENT_DEADLINE_EXCEEDED);
  EXPECT_EQ(result_.tries, 0);
}

TEST_F(ClientCApi, RefusesWhatIsNoRequest) {
  const attnd_client_request good = request_;
  const auto refused = [&](auto change) {
    request_ = good;
    change(request_);
    EXPECT_EQ(Compute(), ATTND_CLIENT_INVALID_ARGUMENT);
    EXPECT_EQ(result_.tries, 0);
    return std::string(result_.message);
  };
  using R = attnd_client_request;
  EXPECT_EQ(refused([](R& r) { r.layout = 3; }), "layout is 3; it must be in 0..2");
  EXPECT_EQ(refused([](R& r) { r.causal = -1; }), "causal is -1; it must be in 0..2");
  EXPECT_EQ(refused([](R& r) { r.transport = 9; }), "transport is 9; it must be in 0..3");
  EXPECT_EQ(refused([](R& r) { r.k.dtype = 3; }), "k.dtype is 3; it must be in 0..2");
  EXPECT_EQ(refused([](R& r) { r.v.rank = -1; }), "v.rank is -1; it must be in 0..64");
  EXPECT_EQ(refused([](R& r) { r.q.shape = nullptr; }), "q.shape is NULL");
  EXPECT_EQ(refused([](R& r) { r.o = nullptr; }), "o is NULL");
  EXPECT_EQ(refused([](R& r) { r.given = 16; }), "given is 16; it must be of 1, 2, 4 and 8");
  EXPECT_EQ(refused([](R& r) { r.priority = -2; }), "priority is -2; it must be at least 0");
  EXPECT_EQ(refused([](R& r) { r.alibi_slopes_count = -1; }),
            "alibi_slopes_count is -1; it must be at least 0");
  EXPECT_EQ(refused([](R& r) { r.cu_seqlens_q_count = 2; }), "cu_seqlens_q is NULL");
  EXPECT_THAT(refused([](R& r) { r.q.data = nullptr; }), HasSubstr("q.data is null"));
  const int64_t huge[4] = {int64_t{1} << 40, int64_t{1} << 40, int64_t{1} << 40, 4};
  float lse = 0;
  EXPECT_THAT(refused([&](R& r) { r.q.shape = huge, r.lse = &lse; }), HasSubstr("address space"));
  EXPECT_THAT(refused([](R& r) { r.struct_size_bytes = 8; }), HasSubstr("must be at least"));
  EXPECT_EQ(server_.calls(), 0);
  request_ = good;
  EXPECT_EQ(Compute(), ATTND_CLIENT_OK);
}

TEST_F(ClientCApi, RefusesStructsOfANewerHeader) {
  request_.struct_size_bytes = sizeof(request_) + 8;
  EXPECT_EQ(Compute(), ATTND_CLIENT_UNIMPLEMENTED);
  EXPECT_THAT(result_.message, HasSubstr("a newer one is needed"));
  result_.struct_size_bytes = sizeof(result_) + 8;
  EXPECT_EQ(Compute(), ATTND_CLIENT_UNIMPLEMENTED);
  attnd_client_options options;
  attnd_client_options_init(&options, sizeof(options));
  options.struct_size_bytes += 8;
  attnd_client* client = client_;
  EXPECT_EQ(attnd_client_connect("127.0.0.1:1", &options, &client, error_, sizeof(error_)),
            ATTND_CLIENT_UNIMPLEMENTED);
  EXPECT_EQ(client, nullptr);
  EXPECT_EQ(attnd_client_connect("nowhere", nullptr, &client, error_, sizeof(error_)),
            ATTND_CLIENT_INVALID_ARGUMENT);
  EXPECT_THAT(error_, HasSubstr("nowhere"));
}

TEST_F(ClientCApi, TakesNothingForNull) {
  EXPECT_EQ(attnd_client_compute(nullptr, &request_, &result_), ATTND_CLIENT_INVALID_ARGUMENT);
  EXPECT_STREQ(result_.message, "client is NULL");
  EXPECT_EQ(attnd_client_compute(client_, nullptr, &result_), ATTND_CLIENT_INVALID_ARGUMENT);
  EXPECT_EQ(attnd_client_start(client_, &request_, nullptr, nullptr, 0),
            ATTND_CLIENT_INVALID_ARGUMENT);
  EXPECT_EQ(attnd_client_wait(nullptr, 0, &result_), ATTND_CLIENT_INVALID_ARGUMENT);
  EXPECT_EQ(attnd_client_get_server_info(client_, 0, nullptr, nullptr, 0),
            ATTND_CLIENT_INVALID_ARGUMENT);
  EXPECT_EQ(attnd_client_connect("127.0.0.1:1", nullptr, nullptr, nullptr, 0),
            ATTND_CLIENT_INVALID_ARGUMENT);
  attnd_client_cancel(nullptr);
  attnd_client_release(nullptr);
  attnd_client_close(nullptr);
  attnd_client_request_init(nullptr, 1000);
  attnd_client_options small;
  std::memset(&small, 0x5a, sizeof(small));
  attnd_client_options_init(&small, 8);
  EXPECT_EQ(small.max_tries, 0x5a5a5a5a);
}

TEST_F(ClientCApi, SaysHowManyBytesALseLacks) {
  // The fake's LSE has a row for each of Q's but its last axis; a Q of one axis has none.
  const int64_t one[1] = {24};
  request_.q.shape = one;
  request_.q.rank = 1;
  float lse = 0;
  request_.lse = &lse;
  EXPECT_EQ(Compute(), ATTND_CLIENT_OK) << result_.message;
  EXPECT_EQ(lse, 0);
}

TEST(ClientCApiStructs, AreOneSizeInCAndInCpp) {
  EXPECT_EQ(attnd_client_sizes_in_c(0), sizeof(attnd_client_options));
  EXPECT_EQ(attnd_client_sizes_in_c(1), sizeof(attnd_client_request));
  EXPECT_EQ(attnd_client_sizes_in_c(2), sizeof(attnd_client_result));
  EXPECT_EQ(attnd_client_sizes_in_c(3), sizeof(attnd_client_server_info));
  EXPECT_STREQ(attnd_client_version(), ATTND_VERSION);
}

}  // namespace
