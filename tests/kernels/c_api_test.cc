// The C ABI through the shared library, as any caller links it.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/attnd_kernels.h"

extern "C" size_t attnd_task_size_in_c(void);

namespace {

using ::testing::HasSubstr;

class CApi : public ::testing::Test {
 protected:
  CApi() {
    EXPECT_EQ(attnd_create("cpu_portable", 2, &handle_, error_, sizeof(error_)), ATTND_OK)
        << error_;
    attnd_task_init(&task_, sizeof(task_));
    task_.dtype = ATTND_F32;
    task_.batch = 1;
    task_.q_heads = task_.kv_heads = 1;
    task_.q_len = 2;
    task_.kv_len = 3;
    task_.head_dim = 4;
    task_.q = q_;
    task_.k = k_;
    task_.v = v_;
    task_.o = o_;
    task_.q_strides = task_.k_strides = task_.v_strides = task_.o_strides = {0, 0, 4};
    task_.lse = lse_;
  }
  ~CApi() override { attnd_destroy(handle_); }

  int Run(int64_t count = 1) {
    return attnd_run(handle_, &task_, count, nullptr, error_, sizeof(error_));
  }

  attnd_kernels* handle_ = nullptr;
  attnd_task task_;
  char error_[256] = "untouched";
  // Q is zero: every key weighs the same.
  float q_[8] = {};
  float k_[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  float v_[12] = {0, 3, 6, 9, 3, 6, 9, 12, 6, 9, 12, 15};
  float o_[8] = {};
  float lse_[2] = {};
};

TEST_F(CApi, ComputesATask) {
  ASSERT_EQ(Run(), ATTND_OK) << error_;
  EXPECT_STREQ(error_, "");
  for (int row = 0; row < 2; ++row) {
    for (int d = 0; d < 4; ++d) EXPECT_FLOAT_EQ(o_[row * 4 + d], v_[4 + d]);
    EXPECT_FLOAT_EQ(lse_[row], std::log(3.0f));
  }
}

TEST_F(CApi, CausalBottomRightThroughTheMaskFields) {
  task_.causal = ATTND_CAUSAL_BOTTOM_RIGHT;
  ASSERT_EQ(Run(), ATTND_OK) << error_;
  EXPECT_FLOAT_EQ(lse_[0], std::log(2.0f));
  EXPECT_FLOAT_EQ(lse_[1], std::log(3.0f));
  task_.window_left = 0;
  ASSERT_EQ(Run(), ATTND_OK) << error_;
  EXPECT_EQ(lse_[0], 0.0f);
  EXPECT_FLOAT_EQ(o_[0], v_[4]);
}

TEST_F(CApi, NamesAndVersion) {
  EXPECT_STREQ(attnd_version(), ATTND_VERSION);
  EXPECT_STREQ(attnd_backend_name(handle_), "cpu_portable");
  EXPECT_STREQ(attnd_backend_name(nullptr), "");
  char name[64];
  task_.causal = ATTND_CAUSAL_TOP_LEFT;
  ASSERT_EQ(attnd_kernel_name(handle_, &task_, name, sizeof(name), error_, sizeof(error_)),
            ATTND_OK);
  EXPECT_STREQ(name, "attn_fwd_f32_d64_causal_portable");
  char cut[9];
  ASSERT_EQ(attnd_kernel_name(handle_, &task_, cut, sizeof(cut), nullptr, 0), ATTND_OK);
  EXPECT_STREQ(cut, "attn_fwd");
}

TEST_F(CApi, BadFieldsAreNamedWithTheirValues) {
  const auto refused = [&](const char* part) {
    EXPECT_EQ(attnd_supports(handle_, &task_, error_, sizeof(error_)), ATTND_INVALID_ARGUMENT);
    EXPECT_THAT(error_, HasSubstr(part));
    EXPECT_EQ(Run(), ATTND_INVALID_ARGUMENT);
    EXPECT_THAT(error_, HasSubstr(part));
    EXPECT_THAT(error_, HasSubstr("task 0"));
  };
  const attnd_task good = task_;
  task_.dtype = 7, refused("dtype is 7"), task_ = good;
  task_.causal = -1, refused("causal is -1"), task_ = good;
  task_.head_dim = 257, refused("head_dim is 257"), task_ = good;
  task_.q_len = -5, refused("q_len is -5"), task_ = good;
  task_.q_heads = 33, task_.kv_heads = 2, refused("q_heads is 33"), task_ = good;
  task_.window_left = -1, refused("window.left is -1"), task_ = good;
  task_.scale = -1, refused("scale is -1"), task_ = good;
  task_.softcap = std::numeric_limits<float>::infinity(), refused("softcap is inf"), task_ = good;
  task_.struct_size_bytes = 8, refused("struct_size_bytes is 8"), task_ = good;
  ASSERT_EQ(Run(), ATTND_OK) << error_;
}

TEST_F(CApi, NullPointersAreRefused) {
  task_.v = nullptr;
  EXPECT_EQ(Run(), ATTND_INVALID_ARGUMENT);
  EXPECT_THAT(error_, HasSubstr("v is NULL"));
  task_.kv_len = 0;  // nothing to read: allowed
  ASSERT_EQ(Run(), ATTND_OK) << error_;
  EXPECT_EQ(o_[0], 0.0f);
  EXPECT_EQ(lse_[0], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(attnd_run(nullptr, &task_, 1, nullptr, error_, sizeof(error_)), ATTND_INVALID_ARGUMENT);
  EXPECT_EQ(attnd_run(handle_, nullptr, 1, nullptr, error_, sizeof(error_)),
            ATTND_INVALID_ARGUMENT);
  EXPECT_EQ(attnd_supports(handle_, nullptr, error_, sizeof(error_)), ATTND_INVALID_ARGUMENT);
  EXPECT_EQ(Run(-1), ATTND_INVALID_ARGUMENT);
  EXPECT_EQ(Run(0), ATTND_OK);
}

// One bad task: none runs, and its place is named.
TEST_F(CApi, AllTasksAreCheckedBeforeTheFirstRuns) {
  attnd_task tasks[3] = {task_, task_, task_};
  tasks[2].head_dim = 0;
  o_[0] = 77;
  EXPECT_EQ(attnd_run(handle_, tasks, 3, nullptr, error_, sizeof(error_)), ATTND_INVALID_ARGUMENT);
  EXPECT_THAT(error_, HasSubstr("task 2: head_dim is 0"));
  EXPECT_EQ(o_[0], 77);
}

TEST_F(CApi, StructsOfANewerHeaderAreRefused) {
  EXPECT_EQ(attnd_task_size_in_c(), sizeof(attnd_task));
  std::vector<unsigned char> larger(sizeof(task_) + 8);
  attnd_task* task = reinterpret_cast<attnd_task*>(larger.data());
  attnd_task_init(task, larger.size());
  EXPECT_EQ(attnd_run(handle_, task, 1, nullptr, error_, sizeof(error_)), ATTND_UNIMPLEMENTED);
  EXPECT_THAT(error_, HasSubstr("a newer one is needed"));
}

TEST_F(CApi, MessagesAreCutToTheBuffer) {
  task_.head_dim = 1000;
  char small[10];
  std::memset(small, 'x', sizeof(small));
  EXPECT_EQ(attnd_run(handle_, &task_, 1, nullptr, small, 8), ATTND_INVALID_ARGUMENT);
  EXPECT_STREQ(small, "task 0:");
  EXPECT_EQ(small[8], 'x');
  EXPECT_EQ(attnd_run(handle_, &task_, 1, nullptr, nullptr, 0), ATTND_INVALID_ARGUMENT);
}

TEST_F(CApi, CreateFailuresLeaveANullHandle) {
  attnd_kernels* handle = handle_;
  EXPECT_EQ(attnd_create("cpu_mmx", 1, &handle, error_, sizeof(error_)), ATTND_NOT_FOUND);
  EXPECT_EQ(handle, nullptr);
  EXPECT_THAT(error_, HasSubstr("cpu_portable"));
  EXPECT_EQ(attnd_create(nullptr, -1, &handle, error_, sizeof(error_)), ATTND_INVALID_ARGUMENT);
  EXPECT_THAT(error_, HasSubstr("threads is -1"));
  EXPECT_EQ(attnd_create(nullptr, 1, nullptr, error_, sizeof(error_)), ATTND_INVALID_ARGUMENT);
  attnd_destroy(nullptr);
}

}  // namespace
