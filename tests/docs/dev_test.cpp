// ./dev itself, with a PATH that holds what a test puts there and nothing else: stand-ins for
// dpkg-query, apt-get, id and cmake.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

class Dev : public testing::Test {
 protected:
  Dev() {
    for (const char* tool : {"bash", "env", "dirname", "readlink", "nproc", "grep", "cat", "mktemp",
                             "tee", "rm", "tail", "printf", "script", "sh"}) {
      for (const char* place : {"/usr/bin/", "/bin/"}) {
        const fs::path program = std::string(place) + tool;
        if (!fs::exists(program) || fs::exists(folder_.file(std::string("bin/") + tool))) continue;
        fs::create_directories(folder_.file("bin"));
        fs::create_symlink(program, folder_.file(std::string("bin/") + tool));
      }
    }
    stand_in("id", "echo 1000");
    stand_in("dpkg-query", "for p in \"${@:3}\"; do echo \"$p install ok installed\"; done");
    stand_in("cmake",
             R"(case $1 in --build) for i in 0 1 2 3; do echo "[$i/3] Building"; done;; esac)");
    fs::create_directories(folder_.file("elsewhere"));
  }

  void stand_in(const std::string& name, const std::string& script) {
    const std::string path =
        folder_.write("bin/" + name, "#!/usr/bin/env bash\necho " + name + " \"$*\" >>'" +
                                         folder_.file("calls") + "'\n" + script + "\n");
    ::chmod(path.c_str(), 0755);
  }

  /// Runs "./dev ARGUMENTS" from another folder; its exit code.
  int dev(const std::string& arguments, const std::string& environment = "SHERD_PROGRAM=") {
    return shell("'" SHERD_SOURCE_DIR "/dev' " + arguments + " >'" + folder_.file("out") + "' 2>'" +
                     folder_.file("err") + "'",
                 environment);
  }
  int shell(const std::string& line, const std::string& environment) {
    const int status = std::system(("cd '" + folder_.file("elsewhere") +
                                    "' && env -u NO_COLOR PATH='" + folder_.file("bin") + "' " +
                                    environment + " sh -c \"" + line + "\" </dev/null")
                                       .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string out() const { return folder_.read("out"); }
  std::string err() const { return folder_.read("err"); }
  std::string calls() const { return folder_.read("calls"); }

  test::TempFolder folder_;
};

int num_lines(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

TEST_F(Dev, RunsTheProgramInTheCallersFolderWithTheCallersPaths) {
  stand_in("program", "pwd; echo \"$*\"");
  const std::string environment = "SHERD_PROGRAM='" + folder_.file("bin/program") + "'";
  ASSERT_EQ(dev("train mine.yaml --ranks 2", environment), 0) << err();
  EXPECT_EQ(out(), folder_.file("elsewhere") + "\ntrain mine.yaml --ranks 2\n");
  ASSERT_EQ(dev("train --ranks 2", environment), 0) << err();
  EXPECT_EQ(out(), folder_.file("elsewhere") + "\ntrain " SHERD_SOURCE_DIR
                                               "/recipes/quickstart.yaml --ranks 2\n");
  ASSERT_EQ(dev("sherd verify runs/x", environment), 0) << err();
  EXPECT_EQ(out(), folder_.file("elsewhere") + "\nverify runs/x\n");
  EXPECT_EQ(calls().find("cmake --"), std::string::npos);
}

TEST_F(Dev, BuildsWhatHasChangedBeforeItRunsTheProgram) {
  ASSERT_EQ(dev("sherd info", "DEV_SHOW=1"), 0) << err();
  EXPECT_EQ(out(), "build cpu sherd\n" SHERD_SOURCE_DIR "/build/cpu/sherd info\n");
}

TEST_F(Dev, CountsWhatItBuildsWithoutControlCharactersInAPipe) {
  ASSERT_EQ(dev("build cpu sherd"), 0) << err();
  EXPECT_NE(err().find("\n  steps done: 3 of 3\n"), std::string::npos) << err();
  EXPECT_EQ(err().find_first_of("\033\r"), std::string::npos) << err();
}

TEST_F(Dev, ColoursOnATerminalUnlessNoColorIsSet) {
  const std::string command = "script -qec '" SHERD_SOURCE_DIR
                              "/dev build cpu sherd' /dev/null >'" +
                              folder_.file("out") + "' 2>&1";
  ASSERT_EQ(shell(command, "TERM=xterm"), 0) << out();
  EXPECT_NE(out().find("\033[1m"), std::string::npos) << out();
  ASSERT_EQ(shell(command, "TERM=xterm NO_COLOR=1"), 0) << out();
  EXPECT_EQ(out().find("\033[1m"), std::string::npos) << out();
  EXPECT_NE(out().find("3 of 3"), std::string::npos) << out();
}

TEST_F(Dev, ABuildThatFailsEndsWithItsWordsAndItsCode) {
  stand_in("cmake",
           R"(case $1 in --build) echo "[1/3] Building"; echo "FAILED: a.o"; exit 7;; esac)");
  EXPECT_EQ(dev("build cpu sherd"), 7);
  EXPECT_NE(err().find("FAILED: a.o\n"), std::string::npos) << err();
}

TEST_F(Dev, SaysInOneSentenceWhoMustInstallWhatIsMissing) {
  stand_in("dpkg-query", "echo g++ install ok installed");
  stand_in("apt-get", "");
  EXPECT_EQ(dev("sherd info"), 1);
  EXPECT_EQ(num_lines(err()), 1) << err();
  EXPECT_NE(err().find("needs root or sudo; ask an administrator to run: apt-get install cmake "),
            std::string::npos)
      << err();
  EXPECT_EQ(calls().find("apt-get"), std::string::npos) << calls();
}

TEST_F(Dev, CountsThePackagesThatItInstalls) {
  stand_in("dpkg-query", "");
  stand_in("id", "echo 0");
  stand_in("apt-get", R"(echo "Get:1 a list"; case $1 in install)
    echo "0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded."
    echo "Get:1 a"; echo "Get:2 b"; echo "Unpacking a ..."; echo "Unpacking b ..."
    echo "Setting up a ..."; echo "Setting up b ...";; esac)");
  ASSERT_EQ(dev("build cpu"), 0) << err();
  for (const char* line : {"packages fetched: 2 of 2\n", "packages unpacked: 2 of 2\n",
                           "packages set up: 1 of 2\n", "packages set up: 2 of 2\n"}) {
    EXPECT_NE(err().find(line), std::string::npos) << line << " isn't in:\n" << err();
  }
  EXPECT_EQ(err().find("of 0"), std::string::npos) << err();
}

TEST_F(Dev, ShowsWhyPackagesCouldNotBeInstalled) {
  stand_in("dpkg-query", "");
  stand_in("id", "echo 0");
  stand_in("apt-get", "echo Reading...; echo 'E: no such package'; exit 100");
  EXPECT_EQ(dev("build cpu"), 1);
  EXPECT_NE(err().find("E: no such package\ndev: the packages couldn't be installed.\n"),
            std::string::npos)
      << err();
  EXPECT_EQ(calls().find("cmake --"), std::string::npos) << calls();
}

TEST_F(Dev, CudaWithoutAToolkitIsRefusedBeforeAnythingIsInstalled) {
  stand_in("dpkg-query", "");
  stand_in("id", "echo 0");
  stand_in("apt-get", "");
  for (const char* command :
       {"build cuda", "deps cuda", "bundle", "gpu-check", "gpu-check --tune"}) {
    EXPECT_EQ(dev(command), 1) << command;
    EXPECT_EQ(num_lines(err()), 1) << err();
    EXPECT_NE(err().find("there is no nvcc here"), std::string::npos) << err();
  }
  EXPECT_EQ(calls().find("apt-get"), std::string::npos) << calls();
}

TEST_F(Dev, UnknownWordsAreNamed) {
  EXPECT_EQ(dev("trian"), 1);
  EXPECT_EQ(err(), "dev: there is no command trian; ./dev help lists them.\n");
  EXPECT_EQ(dev("build sherd"), 1);
  EXPECT_EQ(err(), "dev: there is no preset sherd (cpu, cpu-asan, cpu-tsan, cpu-fuzz, cuda).\n");
}

}  // namespace
}  // namespace sherd
