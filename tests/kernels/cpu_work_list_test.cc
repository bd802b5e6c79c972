#include <limits>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/work_list.h"

namespace attnd::kernels::cpu {
namespace {

AttentionTask Task(int64_t batch, int64_t q_heads, int64_t q_len, int64_t kv_len, MaskSpec mask) {
  AttentionTask task;
  task.problem.batch = batch;
  task.problem.q_heads = task.problem.kv_heads = q_heads;
  task.problem.q_len = q_len;
  task.problem.kv_len = kv_len;
  task.problem.head_dim = 64;
  task.problem.mask = mask;
  task.plan.q_tile = 128;
  return task;
}

const MaskSpec kCausal = {{Causal::kBottomRight}, {}};

TEST(WorkList, HoldsEveryTileOfEveryTaskOnce) {
  const std::vector<AttentionTask> tasks = {Task(2, 3, 300, 50, {}), Task(1, 1, 1, 0, {}),
                                            Task(0, 4, 100, 100, {}), Task(1, 2, 128, 128, kCausal),
                                            Task(3, 1, 0, 10, {})};
  const WorkList list(tasks);
  EXPECT_EQ(list.size(), 2 * 3 * 3 + 1 + 2);
  std::set<std::tuple<const AttentionTask*, int64_t, int64_t, int64_t>> seen;
  for (int64_t i = 0; i < list.size(); ++i) {
    const WorkItem item = list.At(i);
    EXPECT_TRUE(seen.insert({item.task, item.batch, item.q_head, item.q_begin}).second);
    EXPECT_LT(item.batch, item.task->problem.batch);
    EXPECT_LT(item.q_head, item.task->problem.q_heads);
    EXPECT_LT(item.q_begin, item.task->problem.q_len);
    EXPECT_EQ(item.q_begin % 128, 0);
  }
}

TEST(WorkList, LongestFirstByVisiblePairs) {
  const std::vector<AttentionTask> tasks = {
      Task(1, 1, 128, 64, {}), Task(1, 1, 1024, 1024, kCausal), Task(1, 1, 128, 4096, {})};
  const WorkList list(tasks);
  ASSERT_EQ(list.size(), 1 + 8 + 1);
  EXPECT_EQ(list.At(0).task, &tasks[2]);
  EXPECT_EQ(list.At(1).q_begin, 896);  // of the causal one: its last tile sees most
  EXPECT_EQ(list.At(8).q_begin, 0);
  EXPECT_EQ(list.At(9).task, &tasks[0]);
}

// Case K37: no 16-bit count of heads, and a list whose size does not depend on it.
TEST(WorkList, BatchTimesHeadsBeyond32Bits) {
  const std::vector<AttentionTask> tasks = {Task(int64_t{1} << 20, int64_t{1} << 20, 1, 1, {})};
  const WorkList list(tasks);
  EXPECT_EQ(list.size(), int64_t{1} << 40);
  const WorkItem last = list.At(list.size() - 1);
  EXPECT_EQ(last.batch, (int64_t{1} << 20) - 1);
  EXPECT_EQ(last.q_head, (int64_t{1} << 20) - 1);
}

TEST(WorkList, EmptyTasksGiveNoItems) {
  EXPECT_EQ(WorkList({}).size(), 0);
  EXPECT_EQ(WorkList({}).cost(), 0);
}

}  // namespace
}  // namespace attnd::kernels::cpu
