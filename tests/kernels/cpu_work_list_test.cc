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
  return task;
}

Cut By128Rows(const AttentionProblem&) { return {.rows = 128}; }

const MaskSpec kCausal = {{Causal::kBottomRight}, {}};

TEST(WorkList, IsUniformWhereItemsDifferInBatchAndHeadAlone) {
  const std::vector<AttentionTask> one_tile = {Task(2, 3, 128, 50, kCausal)};
  EXPECT_TRUE(WorkList(one_tile, By128Rows).IsUniform());
  const std::vector<AttentionTask> two_tiles = {Task(2, 3, 256, 256, kCausal)};
  EXPECT_FALSE(WorkList(two_tiles, By128Rows).IsUniform());
  EXPECT_TRUE(WorkList({}, By128Rows).IsUniform());
}

TEST(WorkList, HoldsEveryTileOfEveryTaskOnce) {
  const std::vector<AttentionTask> tasks = {Task(2, 3, 300, 50, {}), Task(1, 1, 1, 0, {}),
                                            Task(0, 4, 100, 100, {}), Task(1, 2, 128, 128, kCausal),
                                            Task(3, 1, 0, 10, {})};
  const WorkList list(tasks, By128Rows);
  EXPECT_EQ(list.size(), 2 * 3 * 3 + 1 + 2);
  EXPECT_FALSE(list.IsUniform());
  std::set<std::tuple<const AttentionTask*, int64_t, int64_t, int64_t>> seen;
  for (int64_t i = 0; i < list.size(); ++i) {
    const WorkItem item = list.At(i);
    EXPECT_TRUE(seen.insert({item.task, item.batch, item.head, item.row_begin}).second);
    EXPECT_LT(item.batch, item.task->problem.batch);
    EXPECT_LT(item.head, item.task->problem.q_heads);
    EXPECT_LT(item.row_begin, item.task->problem.q_len);
    EXPECT_EQ(item.row_begin % 128, 0);
  }
}

TEST(WorkList, LongestFirstByVisiblePairs) {
  const std::vector<AttentionTask> tasks = {
      Task(1, 1, 128, 64, {}), Task(1, 1, 1024, 1024, kCausal), Task(1, 1, 128, 4096, {})};
  const WorkList list(tasks, By128Rows);
  ASSERT_EQ(list.size(), 1 + 8 + 1);
  EXPECT_EQ(list.At(0).task, &tasks[2]);
  EXPECT_EQ(list.At(1).row_begin, 896);  // of the causal one: its last tile sees most
  EXPECT_EQ(list.At(8).row_begin, 0);
  EXPECT_EQ(list.At(9).task, &tasks[0]);
}

// Case K37: no 16-bit count of heads, and a list whose size does not depend on it.
TEST(WorkList, BatchTimesHeadsBeyond32Bits) {
  const std::vector<AttentionTask> tasks = {Task(int64_t{1} << 20, int64_t{1} << 20, 1, 1, {})};
  const WorkList list(tasks, By128Rows);
  EXPECT_EQ(list.size(), int64_t{1} << 40);
  const WorkItem last = list.At(list.size() - 1);
  EXPECT_EQ(last.batch, (int64_t{1} << 20) - 1);
  EXPECT_EQ(last.head, (int64_t{1} << 20) - 1);
}

// Four query heads on each of two KV heads: rows of a group follow each other by position.
TEST(WorkList, CutsGroupsOfHeadsAndKeys) {
  std::vector<AttentionTask> tasks = {Task(3, 8, 10, 250, {})};
  tasks[0].problem.kv_heads = 2;
  const WorkList list(tasks, [](const AttentionProblem&) {
    return Cut{.by_kv_head = true, .rows = 32, .split_keys = 100};
  });
  ASSERT_EQ(list.size(), 3 * 2 * 2 * 3);
  std::set<std::tuple<int64_t, int64_t, int64_t, int64_t>> seen;
  for (int64_t i = 0; i < list.size(); ++i) {
    const WorkItem item = list.At(i);
    EXPECT_TRUE(seen.insert({item.batch, item.head, item.row_begin, item.key_begin}).second);
    EXPECT_LT(item.head, 2);
    EXPECT_EQ(item.rows, item.row_begin == 0 ? 32 : 8);
    EXPECT_EQ(item.key_begin % 100, 0);
    EXPECT_LT(item.key_begin, 250);
  }
}

// But not what rows cost however few keys they meet.
TEST(WorkList, HoldsTheQueriesThatAreAskedForAlone) {
  AttentionTask task = Task(1, 2, 300, 50, {});
  task.problem.q_heads = 4;
  task.q_begin = 128;
  task.q_end = 270;
  const WorkList tiles({&task, 1}, By128Rows);
  ASSERT_EQ(tiles.size(), 4 * 2);
  EXPECT_EQ(tiles.At(0).row_begin, 128);
  EXPECT_EQ(tiles.At(4).row_begin, 256);
  EXPECT_EQ(tiles.At(4).rows, 14);
  const WorkList groups(
      {&task, 1}, [](const AttentionProblem&) { return Cut{.by_kv_head = true, .rows = 1000}; });
  ASSERT_EQ(groups.size(), 2);
  EXPECT_EQ(groups.At(0).row_begin, 2 * 128);
  EXPECT_EQ(groups.At(0).rows, 2 * 142);
}

TEST(WorkList, SpeedMakesKeysCheaper) {
  const auto cost = [](int64_t kv_len, double speed) {
    const std::vector<AttentionTask> tasks = {Task(1, 1, 128, kv_len, {})};
    return WorkList(tasks,
                    [=](const AttentionProblem&) { return Cut{.rows = 128, .speed = speed}; })
        .cost();
  };
  EXPECT_DOUBLE_EQ(cost(64, 1) - cost(0, 1), 8 * (cost(64, 8) - cost(0, 8)));
  EXPECT_EQ(cost(0, 1), cost(0, 8));
  EXPECT_GT(cost(0, 1), 0);
}

TEST(WorkList, EmptyTasksGiveNoItems) {
  EXPECT_EQ(WorkList({}, By128Rows).size(), 0);
  EXPECT_EQ(WorkList({}, By128Rows).cost(), 0);
}

}  // namespace
}  // namespace attnd::kernels::cpu
