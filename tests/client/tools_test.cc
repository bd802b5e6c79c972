// What the tools are made of: command lines, the check against fp64.
#include <cmath>
#include <random>

#include "client/tools/args.h"
#include "client/tools/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnd::tools {
namespace {

using ::testing::HasSubstr;

const std::vector<Flag> kFlags = {{"n", "N", "a number"}, {"time", "T", ""}, {"json", "", ""}};

TEST(Args, ReadsBothForms) {
  const auto args = Args::Parse({"--n", "-5", "--json", "--time=500ms"}, kFlags);
  ASSERT_TRUE(args.ok()) << args.status();
  int64_t n = 0;
  absl::Duration time;
  EXPECT_TRUE(args->Read("n", -10, 10, &n).ok());
  EXPECT_TRUE(args->Read("time", &time).ok());
  EXPECT_EQ(n, -5);
  EXPECT_EQ(time, absl::Milliseconds(500));
  EXPECT_TRUE(args->Has("json"));
}

TEST(Args, RefusesWhatItDoesNotKnow) {
  const auto error = [](std::vector<std::string> words) {
    return std::string(Args::Parse(words, kFlags).status().message());
  };
  EXPECT_EQ(error({"--m", "1"}), "there is no flag --m");
  EXPECT_EQ(error({"--"}), "there is no flag --");
  EXPECT_EQ(error({"word"}), "\"word\" is not a flag");
  EXPECT_EQ(error({"--n"}), "--n needs a value: N");
  EXPECT_EQ(error({"--n", "--json"}), "--n needs a value: N");
  EXPECT_EQ(error({"--n=1", "--n=2"}), "--n stands twice");
  EXPECT_EQ(error({"--json=1"}), "--json takes no value");
}

TEST(Args, NamesFlagAndValue) {
  const auto args = *Args::Parse({"--n=12", "--time=-1s"}, kFlags);
  int64_t n = 0;
  double x = 0;
  absl::Duration time;
  EXPECT_EQ(args.Read("n", 0, 9, &n).message(), "--n is \"12\", must be a whole number in 0..9");
  EXPECT_EQ(args.Read("n", 0.0, 1.0, &x).message(), "--n is \"12\", must be a number in 0..1");
  EXPECT_THAT(args.Read("time", &time).message(), HasSubstr("--time is \"-1s\""));
  for (const char* bad : {"", "soon", "nan", "inf", "0", "1x"}) {
    EXPECT_FALSE(Args::Parse({std::string("--time=") + bad}, kFlags)->Read("time", &time).ok());
  }
}

// A request on random data with the right answer made by hand, element by element.
struct Sample {
  Sample(Layout with_layout, std::vector<int64_t> q_shape, std::vector<int64_t> kv_shape) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](const std::vector<int64_t>& shape, std::vector<float>* data) {
      int64_t elems = 1;
      for (int64_t extent : shape) elems *= extent;
      for (int64_t i = 0; i < elems; ++i) data->push_back(normal(random));
      return TensorView{DType::kFloat32, shape, data->data()};
    };
    request.layout = with_layout;
    request.q = fill(q_shape, &q);
    request.k = fill(kv_shape, &k);
    request.v = fill(kv_shape, &v);
    result.o = {DType::kFloat32, q_shape, std::vector<unsigned char>(4 * q.size())};
  }
  float& O(int64_t i) { return reinterpret_cast<float*>(result.o.bytes.data())[i]; }

  std::vector<float> q, k, v;
  AttentionRequest request;
  AttentionResult result;
};

// Packed, sequences of 1 key each: O is that key's V, whatever the scores.
TEST(Verify, ChecksPackedSequencesInPlace) {
  Sample sample(Layout::kTHD, {4, 2, 3}, {2, 1, 3});
  sample.request.cu_seqlens_q = {0, 3, 4};
  sample.request.cu_seqlens_kv = {0, 1, 2};
  for (int64_t token = 0; token < 4; ++token) {
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t d = 0; d < 3; ++d) {
        sample.O((token * 2 + head) * 3 + d) = sample.v[(token == 3 ? 1 : 0) * 3 + d];
      }
    }
  }
  sample.result.lse = Tensor{DType::kFloat32, {2, 4}, std::vector<unsigned char>(32)};
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t token = 0; token < 4; ++token) {
      double score = 0;
      for (int64_t d = 0; d < 3; ++d) {
        score +=
            double{sample.q[(token * 2 + head) * 3 + d]} * sample.k[(token == 3 ? 1 : 0) * 3 + d];
      }
      reinterpret_cast<float*>(sample.result.lse->bytes.data())[head * 4 + token] =
          static_cast<float>(score / std::sqrt(3.0));
    }
  }
  const auto expected = Expected::Compute(sample.request);
  ASSERT_TRUE(expected.ok()) << expected.status();
  Verification checked = expected->Check(sample.result);
  EXPECT_TRUE(checked.ok()) << checked.rel_error << " " << *checked.lse_rel_error;

  std::swap(sample.O(0), sample.O(20));  // an answer that landed in another sequence
  checked = expected->Check(sample.result);
  EXPECT_FALSE(checked.ok());
  EXPECT_GT(checked.rel_error, 0.01);
}

// One key: O is V in both layouts, whose axes differ.
TEST(Verify, KnowsTheLayouts) {
  for (Layout layout : {Layout::kBHSD, Layout::kBSHD}) {
    const bool heads_first = layout == Layout::kBHSD;
    Sample sample(
        layout, heads_first ? std::vector<int64_t>{1, 2, 3, 4} : std::vector<int64_t>{1, 3, 2, 4},
        heads_first ? std::vector<int64_t>{1, 2, 1, 4} : std::vector<int64_t>{1, 1, 2, 4});
    for (int64_t i = 0; i < 24; ++i) {
      const int64_t head = heads_first ? i / 12 : i / 4 % 2;
      sample.O(i) = sample.v[head * 4 + i % 4];
    }
    const auto expected = Expected::Compute(sample.request);
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_TRUE(expected->Check(sample.result).ok());
    sample.O(0) = std::nanf("");
    EXPECT_FALSE(expected->Check(sample.result).ok());
  }
}

TEST(Verify, RefusesWhatIsNoProblem) {
  Sample sample(Layout::kBHSD, {1, 3, 1, 4}, {1, 2, 1, 4});
  EXPECT_EQ(Expected::Compute(sample.request).status().code(), absl::StatusCode::kInvalidArgument);
  Sample flat(Layout::kBHSD, {3, 4}, {3, 4});
  EXPECT_EQ(Expected::Compute(flat.request).status().code(), absl::StatusCode::kInvalidArgument);
  Sample packed(Layout::kTHD, {4, 1, 4}, {4, 1, 4});
  packed.request.cu_seqlens_q = packed.request.cu_seqlens_kv = {0, 5};
  EXPECT_EQ(Expected::Compute(packed.request).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace attnd::tools
