#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "kernels/cpu/processors.h"

namespace attnd::kernels::cpu {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// A file tree like /sys/fs/cgroup.
class CgroupTree : public ::testing::Test {
 protected:
  CgroupTree()
      : root_(::testing::TempDir() + "attnd_cgroup_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(root_);
  }
  ~CgroupTree() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  const std::string root_;
};

TEST_F(CgroupTree, NoFilesMeanNoLimit) {
  EXPECT_EQ(CgroupProcessors("", root_), kNoLimit);
  EXPECT_EQ(CgroupProcessors("0::/a/b\n", root_), kNoLimit);
  EXPECT_EQ(CgroupProcessors("not a line of this file\n", root_), kNoLimit);
}

TEST_F(CgroupTree, Version2TakesTheLeastOnTheWayToTheRoot) {
  Write("/a/cpu.max", "150000 100000\n");
  Write("/a/b/cpu.max", "max 100000\n");
  Write("/other/cpu.max", "10000 100000\n");
  EXPECT_EQ(CgroupProcessors("0::/a/b\n", root_), 1.5);
  EXPECT_EQ(CgroupProcessors("0::/a\n", root_), 1.5);
  EXPECT_EQ(CgroupProcessors("0::/\n", root_), kNoLimit);
}

// Inside a container the group's own files are mounted as the root.
TEST_F(CgroupTree, Version2RootCounts) {
  Write("/cpu.max", "200000 50000");
  EXPECT_EQ(CgroupProcessors("0::/\n", root_), 4);
  EXPECT_EQ(CgroupProcessors("0::/docker/0123/that/is/not/mounted\n", root_), 4);
}

TEST_F(CgroupTree, Version1) {
  Write("/cpu,cpuacct/pod/cpu.cfs_quota_us", "250000\n");
  Write("/cpu,cpuacct/pod/cpu.cfs_period_us", "100000\n");
  Write("/cpu,cpuacct/pod/inner/cpu.cfs_quota_us", "-1\n");
  Write("/cpu,cpuacct/pod/inner/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CgroupProcessors("4:cpu,cpuacct:/pod/inner\n3:memory:/pod\n", root_), 2.5);
  EXPECT_EQ(CgroupProcessors("4:cpuset:/pod\n", root_), kNoLimit);
}

}  // namespace
}  // namespace attnd::kernels::cpu
