// `sherd completion` and `sherd man`: the scripts in the shells they are for, the pages in the
// programs that read them.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "engine/recipe/fields.h"
#include "tests/support/runs/program.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

std::string output_of(const std::vector<std::string>& arguments) {
  const test::ProgramOutcome outcome = test::run_program(SHERD_PROGRAM, arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.out;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::ranges::sort(lines);
  return lines;
}

bool has_program(const std::string& name) {
  return test::run_program("/bin/bash", {"-c", "command -v " + name}).exit_code == 0;
}

class Shells : public testing::Test {
 protected:
  Shells() {
    folder_.write("one.yaml", "");
    folder_.write("two.yml", "");
    folder_.write("notes.txt", "");
    for (const char* shell : {"bash", "zsh", "fish"}) {
      folder_.write(std::string("script.") + shell, output_of({"completion", shell}));
    }
  }

  // What bash offers for the last of `words`, as it splits them itself.
  std::vector<std::string> bash_offers(const std::string& words) const {
    const test::ProgramOutcome outcome =
        test::run_program("/bin/bash", {"--norc", "-c", R"(
          cd "$1"; source ./script.bash
          COMP_WORDS=($2); if [[ $2 == *' ' ]]; then COMP_WORDS+=(''); fi
          COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _sherd
          ((${#COMPREPLY[@]} == 0)) || printf '%s\n' "${COMPREPLY[@]}")",
                                        "bash", folder_.path(), words});
    EXPECT_EQ(outcome.err, "") << words;
    return sorted_lines(outcome.out);
  }

  test::TempFolder folder_;
};

using Words = std::vector<std::string>;

TEST_F(Shells, BashOffersCommandsAndOptions) {
  EXPECT_EQ(bash_offers("sherd t"), (Words{"tokenize", "train", "tune"}));
  EXPECT_EQ(bash_offers("sherd --v"), (Words{"--version"}));
  EXPECT_EQ(bash_offers("sherd train --s"), (Words{"--set", "--share-device"}));
  EXPECT_EQ(bash_offers("sherd sample x --top"), (Words{"--top-k", "--top-p"}));
}

TEST_F(Shells, BashOffersFilesByWhatAnArgumentIs) {
  folder_.write("runs/one/metrics.jsonl", "");
  EXPECT_EQ(bash_offers("sherd train "), (Words{"one.yaml", "runs", "two.yml"}));
  EXPECT_EQ(bash_offers("sherd plan o"), (Words{"one.yaml"}));
  EXPECT_EQ(bash_offers("sherd sample r"), (Words{"runs"}));
  EXPECT_EQ(bash_offers("sherd export r --to-hf n"), Words{}) << "a folder is expected";
  EXPECT_EQ(bash_offers("sherd train --ranks "), Words{}) << "a number is expected";
}

TEST_F(Shells, BashOffersKeysAndTheirValues) {
  EXPECT_EQ(bash_offers("sherd train one.yaml --set run.dev"), (Words{"run.device="}));
  EXPECT_EQ(bash_offers("sherd train one.yaml --set run.device = c"), (Words{"cpu", "cuda"}));
  EXPECT_EQ(bash_offers("sherd train one.yaml --set run.deterministic ="),
            (Words{"false", "true"}));
  EXPECT_EQ(bash_offers("sherd train --set = run.device = a"), (Words{"auto"}));
  EXPECT_EQ(bash_offers("sherd export x --dtype b"), (Words{"bf16"}));
  EXPECT_EQ(bash_offers("sherd train --set ").size(), recipe_fields().size());
}

TEST_F(Shells, BashOffersACommandAfterLaunch) {
  EXPECT_EQ(bash_offers("sherd launch -n 2 -- tra"), (Words{"train"}));
  EXPECT_EQ(bash_offers("sherd launch -n 2 -- train --ra"), (Words{"--ranks"}));
}

TEST_F(Shells, ZshReadsItsScript) {
  if (!has_program("zsh")) GTEST_SKIP() << "there is no zsh here";
  const test::ProgramOutcome outcome =
      test::run_program("/bin/bash", {"-c", "zsh -f -n " + folder_.file("script.zsh")});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST_F(Shells, FishOffersCommandsOptionsAndKeys) {
  if (!has_program("fish")) GTEST_SKIP() << "there is no fish here";
  const auto offers = [&](const std::string& line) {
    const std::string script = "source " + folder_.file("script.fish") + "; complete -C '" + line +
                               "' | string replace -r '\\t.*' ''";
    const test::ProgramOutcome outcome = test::run_program(
        "/bin/bash",
        {"-c", "HOME=\"$1\" fish --no-config -c \"$2\"", "bash", folder_.path(), script});
    EXPECT_EQ(outcome.err, "") << line;
    return sorted_lines(outcome.out);
  };
  EXPECT_EQ(offers("sherd to"), (Words{"tokenize"}));
  EXPECT_EQ(offers("sherd train --sha"), (Words{"--share-device"}));
  EXPECT_EQ(offers("sherd train --set run.device=c"), (Words{"run.device=cpu", "run.device=cuda"}));
}

TEST(ManPages, NameEveryOptionOfHelp) {
  const std::string page = output_of({"man", "train"});
  for (const char* word : {"\\-\\-ranks", "\\-\\-set", "\\-\\-share\\-device", "KEY=VALUE"}) {
    EXPECT_NE(page.find(word), std::string::npos) << word << "\n" << page;
  }
  const std::string version = output_of({"--version"});
  EXPECT_NE(page.find(version.substr(0, version.size() - 1)), std::string::npos);
}

TEST(ManPages, AreReadWithoutWarnings) {
  const test::TempFolder folder;
  EXPECT_EQ(output_of({"man", "--to", folder.path()}), "");
  EXPECT_EQ(output_of({"man"}), folder.read("sherd.1"));
  EXPECT_EQ(output_of({"man", "train"}), folder.read("sherd-train.1"));
  bool is_read = false;
  for (const std::string reader :
       {"man --warnings -l \"$page\" 2>&1 >/dev/null",
        "groff -man -ww -Tutf8 \"$page\" 2>&1 >/dev/null", "mandoc -Tlint -Werror \"$page\""}) {
    if (!has_program(reader.substr(0, reader.find(' ')))) continue;
    is_read = true;
    const std::string script =
        "cd \"$1\" && for page in *.1; do LC_ALL=C.UTF-8 " + reader + "; done";
    EXPECT_EQ(test::run_program("/bin/bash", {"-c", script, "bash", folder.path()}).out, "")
        << reader;
  }
  if (!is_read) GTEST_SKIP() << "there is no man, groff or mandoc here";
}

TEST(ManPages, OfNoCommandAreRefused) {
  const test::ProgramOutcome outcome = test::run_program(SHERD_PROGRAM, {"man", "fly"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err,
            "sherd: sherd man: there is no command \"fly\"; sherd --help lists them.\n");
}

}  // namespace
}  // namespace sherd::engine
