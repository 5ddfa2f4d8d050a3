// What `sherd launch` starts again, and where, after machines have gone: a script in mpirun's place says which
// machines answer, and notes what it was asked for.
#include <filesystem>

#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

class Restarts : public ProcessesTest {
 protected:
  // The first run ends with `code`, later ones well. `gone` doesn't answer.
  void write_mpirun(int code, const std::string& gone) const {
    folder_.write("bin/mpirun", fmt::format("#!/bin/sh\n"
                                            "printf '%s\\n' \"$*\" >>{0}/asked\n"
                                            "case \"$*\" in\n"
                                            "  *'--host {1} '*' true') exit 1 ;;\n"
                                            "  *' true') exit 0 ;;\n"
                                            "esac\n"
                                            "[ -e {0}/begun ] && exit 0\n"
                                            "touch {0}/begun\n"
                                            "exit {2}\n",
                                            folder_.path(), gone, code));
    std::filesystem::permissions(folder_.file("bin/mpirun"), std::filesystem::perms::owner_all);
  }
  test::ProgramOutcome launch(std::vector<std::string> words) const {
    words.insert(words.begin(),
                 {"PATH=" + folder_.file("bin") + ":/usr/bin:/bin", SHERD_PROGRAM, "launch"});
    words.insert(words.end(), {"--", "train", "mine.yaml"});
    return test::run_program("/usr/bin/env", words);
  }
  // "3 node1:1,node2:2" of each run that was begun.
  std::vector<std::string> worlds() const {
    std::vector<std::string> found;
    std::istringstream lines(folder_.read("asked"));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with(" true")) continue;
      std::istringstream words(line);
      std::string word, processes, hosts;
      while (words >> word) {
        if (word == "-n") words >> processes;
        if (word == "--host") words >> hosts;
      }
      found.push_back(processes + " " + hosts);
    }
    return found;
  }
};

TEST_F(Restarts, LeaveOutAMachineThatDoesntAnswer) {
  write_mpirun(205, "node2");  // what mpirun returns then
  const auto outcome = launch(
      {"-n", "6", "--hosts", "node1:2,node2:2,node3:2", "--restarts", "2", "--min-processes", "3"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(worlds(), (std::vector<std::string>{"6 node1:2,node2:2,node3:2", "4 node1:2,node3:2"}));
  EXPECT_EQ(outcome.err,
            "sherd: node2 doesn't answer, and is left out.\n"
            "sherd: the run ended with code 205; starting it again (1 of 2) with -n 4.\n");
}

TEST_F(Restarts, EndWhereTooFewProcessesAreLeft) {
  write_mpirun(4, "node1");
  const auto outcome =
      launch({"-n", "4", "--hosts", "node1:3,node2", "--restarts", "1", "--min-processes", "2"});
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_EQ(worlds(), (std::vector<std::string>{"4 node1:3,node2:1"}));
  EXPECT_EQ(outcome.err,
            "sherd: node1 doesn't answer, and is left out.\n"
            "sherd: processes left: 1; --min-processes asks for 2.\n");
}

TEST_F(Restarts, AskNobodyWhereTheWorldStaysAsItIs) {
  write_mpirun(4, "node2");
  const auto outcome = launch({"-n", "2", "--hosts", "node1,node2", "--restarts", "1"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(worlds(), (std::vector<std::string>{"2 node1:1,node2:1", "2 node1:1,node2:1"}));
  EXPECT_EQ(folder_.read("asked").find(" true"), std::string::npos);
}

TEST_F(Restarts, RefuseOptionsThatDontGoTogether) {
  write_mpirun(0, "none");
  const auto refusal = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"-n", "4"});
    const auto outcome = launch(words);
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_EQ(refusal({"--min-processes", "2", "--restarts", "1"}),
            "sherd: --min-processes is for restarts on other machines; add --hosts and "
            "--restarts.\n");
  EXPECT_EQ(refusal({"--min-processes", "5", "--restarts", "1", "--hosts", "a:4"}),
            "sherd: --min-processes is 5, above the 4 processes to start with (-n).\n");
  EXPECT_EQ(refusal({"--min-processes", "2", "--restarts", "1", "--hosts", "a,b"}),
            "sherd: --hosts has room for 2 processes, and -n is 4. To know what machines that are "
            "left can take, --min-processes needs room for all: node1:4,node2:4.\n");
  EXPECT_EQ(refusal({"--hosts", "a:4,b:x"}),
            "sherd: --hosts has \"b:x\"; expected machines and processes on each: "
            "node1:4,node2:4.\n");
}

}  // namespace
}  // namespace sherd::testing
