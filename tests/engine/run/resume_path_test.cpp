// Runs whose checkpoint.resume is the path of a checkpoint.
#include <filesystem>

#include "core/error.h"
#include "tests/engine/run/mixed_run.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

class ResumePath : public MixedRun {
 protected:
  std::string text(const std::string& output, int max_steps, const std::string& resume) const {
    return recipe_text(output, sources(), fmt::format("max_steps: {}", max_steps),
                       fmt::format("checkpoint: {{interval: 2, resume: {}}}\n", resume));
  }
};

// A scheduler starts the same command again.
TEST_F(ResumePath, OfAnotherRunIsWhereARunBeginsAndALaterStartContinuesIt) {
  train(text("whole", 8, "auto"));
  train(text("first", 4, "auto"));
  const std::string began = train(text("second", 6, saved("first", 4)));
  EXPECT_NE(began.find("resumed from " + saved("first", 4) + ": 4 steps done"), std::string::npos)
      << began;
  fs::remove_all(folder_.file("first"));  // it isn't needed any more
  const std::string said = train(text("second", 8, saved("first", 4)), 2);
  EXPECT_NE(said.find("this run has begun: it continues from its own newest checkpoint, not from " +
                      saved("first", 4) + " (checkpoint.resume)"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("resumed from " + saved("second", 6) + ": 6 steps done"), std::string::npos);
  EXPECT_EQ(digests("second", 8), digests("whole", 8));
}

TEST_F(ResumePath, OfItsOwnRunIsRefusedWhileThereAreLaterCheckpoints) {
  train(text("run", 6, "auto"));
  const std::vector<std::string> before = digests("run", 6);
  const std::string error =
      test::error_text<UsageError>([&] { train(text("run", 8, saved("run", 4))); });
  EXPECT_EQ(error, "checkpoint.resume is " + saved("run", 4) + ", but " +
                       folder_.file("run/checkpoints") +
                       " has later checkpoints. To continue from the newest, step-0000000006, use "
                       "--set checkpoint.resume=auto. To go back, move the later ones away first, "
                       "or choose another run.output_dir.");
  EXPECT_EQ(digests("run", 6), before);
  fs::rename(saved("run", 6), folder_.file("away"));
  train(text("run", 6, saved("run", 4)));
  EXPECT_EQ(digests("run", 6), before);
}

}  // namespace
}  // namespace sherd::testing
