// The program keeps what its caller decided about signals.

#include <signal.h>

#include "tests/engine/main/train_cli_support.h"

namespace sherd::engine {
namespace {

class SignalsTest : public TrainCliTest {
 protected:
  /// Started by a shell that runs `before` first; gets `signal` when the line of step 3 is printed.
  test::ProgramOutcome train_after(const std::string& before, int signal,
                                   const std::string& name) const {
    return train_by(before + "exec \"$0\" \"$@\"", name,
                    {"--set", "metrics.log_interval=1", "--set", "training.max_steps=400"},
                    [signal](pid_t program, const std::string& line) {
                      if (line.starts_with("step 3/")) ::kill(program, signal);
                    });
  }
};

TEST_F(SignalsTest, AProgramStartedToOutliveItsTerminalDoes) {
  const test::ProgramOutcome outcome = train_after("trap '' HUP; ", SIGHUP, "run");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(column("run", "loss").size(), 400u);
}

#ifdef SHERD_SIGNAL_HANDLERS
TEST_F(SignalsTest, HandlersThatALibraryInstallsWhenItIsLoadedChangeNothing) {
  const std::string loaded = "export LD_PRELOAD=" SHERD_SIGNAL_HANDLERS "; ";
  const test::ProgramOutcome outlives = train_after("trap '' HUP; " + loaded, SIGHUP, "outlives");
  EXPECT_EQ(outlives.exit_code, 0) << outlives.err;
  const test::ProgramOutcome stopped = train_after(loaded, SIGTERM, "stopped");
  EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
}
#endif

}  // namespace
}  // namespace sherd::engine
