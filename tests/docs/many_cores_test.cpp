// The scripts that run fuzzers and random recipes on all cores, with stand-ins for the programs: what
// is found is kept and counted, and the exit code says so.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <regex>

#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

class ManyCores : public testing::Test {
 protected:
  void program(const std::string& name, const std::string& script) {
    const std::string path =
        folder_.write("bundle/bin/" + name, "#!/usr/bin/env bash\n" + script + "\n");
    ::chmod(path.c_str(), 0755);
  }
  /// Takes the time that it is given, unless `script` ends it before.
  void fuzzer(const std::string& name, const std::string& script = "") {
    program("fuzz_" + name,
            "for word; do case $word in -artifact_prefix=*) prefix=${word#*=} ;;\n"
            "  -max_total_time=*) seconds=${word#*=} ;; esac; done\n" +
                script + "echo stat::number_of_executed_units: 5 >&2; sleep \"$seconds\"");
    fs::create_directories(folder_.file("bundle/corpus/" + name));
  }

  /// The script's exit code; what it says in `said`.
  int run(const std::string& script, const std::string& arguments) {
    const std::string name = fs::path(script).filename();
    fs::copy(SHERD_SOURCE_DIR "/" + script, folder_.file("bundle/" + name),
             fs::copy_options::overwrite_existing);
    const std::string command = "'" + folder_.file("bundle/" + name) + "' " + arguments + " '" +
                                folder_.file("out") + "' >'" + folder_.file("said") + "' 2>&1";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int fuzz() { return run("tests/fuzz/fuzz_all.sh", "4 2"); }
  bool says(const std::string& pattern) const {
    return std::regex_search(folder_.read("out/summary.txt"), std::regex(pattern));
  }
  std::string findings() const {
    const std::string list = folder_.file("list");
    EXPECT_EQ(
        std::system(
            ("tar -tzf '" + folder_.file("out/findings.tar.gz") + "' >'" + list + "'").c_str()),
        0);
    return folder_.read("list");
  }

  test::TempFolder folder_;
};

TEST_F(ManyCores, FuzzersThatFindNothingAreCounted) {
  fuzzer("one");
  fuzzer("two");
  EXPECT_EQ(fuzz(), 0) << folder_.read("said");
  EXPECT_TRUE(says("one +2 +10 .* 0 +0\n")) << folder_.read("said");
  EXPECT_TRUE(says("all +4 +20 ")) << folder_.read("said");
  EXPECT_FALSE(fs::exists(folder_.file("out/findings.tar.gz")));
}

TEST_F(ManyCores, AFindingIsKeptAndItsFuzzerGoesOn) {
  fuzzer("one");
  // The first process of all finds something.
  fuzzer("two",
         "mkdir '" + folder_.file("first") +
             "' 2>/dev/null && { echo input >\"${prefix}crash-1\"; echo why >&2; exit 77; }\n");
  EXPECT_EQ(fuzz(), 1) << folder_.read("said");
  EXPECT_NE(folder_.read("said").find("\nwhy\n"), std::string::npos) << folder_.read("said");
  EXPECT_TRUE(says("two +[2-9] +10 .* 1 +0\n")) << folder_.read("said");
  EXPECT_NE(findings().find("findings/two/crash-1\n"), std::string::npos) << findings();
  EXPECT_NE(findings().find("findings/two/log."), std::string::npos) << findings();
}

TEST_F(ManyCores, RecipesThatFailAreKeptAndTheNextOnesFollow) {
  program("engine_random_recipe_tests",
          "for ((n = ${SHERD_RECIPES%..*}; n < ${SHERD_RECIPES#*..}; ++n)); do\n"
          "  echo \"recipe $n\"; [ \"$n\" -ne 1007 ] && [ \"$n\" -ne 1031 ] || exit 134\n"
          "done");
  EXPECT_EQ(run("tests/engine/random_recipe/recipes_all.sh", "50 2"), 1) << folder_.read("said");
  EXPECT_TRUE(says("50 tried, 2 failed: (1007 1031|1031 1007)\n")) << folder_.read("said");
  EXPECT_NE(findings().find("findings/recipe_1007.log\n"), std::string::npos) << findings();
}

TEST_F(ManyCores, RecipesThatAllPassAreCounted) {
  program("engine_random_recipe_tests", "exit 0");
  EXPECT_EQ(run("tests/engine/random_recipe/recipes_all.sh", "50 2"), 0) << folder_.read("said");
  EXPECT_TRUE(says("50 tried, 0 failed\n")) << folder_.read("said");
}

}  // namespace
}  // namespace sherd
