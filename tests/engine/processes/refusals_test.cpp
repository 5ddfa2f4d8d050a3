// What is wrong with the weights is found by the rank that reads them: all processes end, and one says why.

#include <algorithm>
#include <cstring>
#include <limits>

#include "tests/engine/huggingface/folder_support.h"
#include "tests/support/runs/program.h"

namespace sherd::engine {
namespace {

class Refusals : public Folder {
 protected:
  static std::string left_in(const std::string& folder) {
    std::string names;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      names += entry.path().string() + "\n";
    }
    return names;
  }
};

TEST_F(Refusals, AValueThatIsntFiniteIsSaidByOneProcessAndNothingIsLeft) {
  write_tokens();
  const std::string model = write_model("llama");
  const std::string good = folder_.read("llama/model.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  folder_.write("folder.yaml", recipe(model));
  // In a slice of the first process, of the last one, of both: then the first one speaks.
  const std::size_t first = 4, last = 70000;
  for (const auto& [places, process] : std::vector<std::pair<std::vector<std::size_t>, int>>{
           {{first}, 0}, {{last}, 2}, {{first, last}, 0}}) {
    std::string bad = good;
    for (const std::size_t in_front_of_end : places) {
      std::memcpy(bad.data() + bad.size() - in_front_of_end, &nan, sizeof nan);
    }
    folder_.write("llama/model.safetensors", bad);
    const auto outcome = test::run_program(
        SHERD_PROGRAM, {"launch", "-n", "3", "--", "train", folder_.file("folder.yaml"), "--set",
                        "run.output_dir=" + folder_.file("run"), "--set", "run.device=cpu", "--set",
                        "zero_optimization.stage=3"});
    EXPECT_EQ(outcome.exit_code, 3);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with(fmt::format("sherd: process {} on ", process)))
        << outcome.err;
    EXPECT_NE(outcome.err.find(": " + model + "/model.safetensors: element "), std::string::npos)
        << outcome.err;
    EXPECT_TRUE(outcome.err.ends_with(" is nan; weights must be finite\n")) << outcome.err;
    EXPECT_EQ(outcome.out.find("with the weights of"), std::string::npos) << outcome.out;
    EXPECT_FALSE(fs::exists(folder_.file("run"))) << left_in(folder_.file("run"));
  }
}

}  // namespace
}  // namespace sherd::engine
