// The life of a run: a long random walk of kills, stops, full disks, damaged and removed files,
// changed recipes, other stages and worlds, evaluations and samples, and after each of them
// everything that must be true of the folder (run_model.h). The seed is printed; SHERD_LIFE_SEED
// gives it, SHERD_LIFE_SECONDS another length. Moments of kills aren't the seed's to choose, so the
// same seed walks nearly the same way.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>

#include "tests/life/run_model.h"
#include "tests/support/random/random_value.h"

namespace sherd::testing {
namespace {

using Clock = std::chrono::steady_clock;

class Life {
 public:
  explicit Life(std::uint64_t seed) : random_(seed) {}

  void live(std::chrono::seconds time) {
    const std::map<std::string, std::function<void()>> events = {
        {"goes on to its end", [this] { go_on(0); }},
        {"is killed", [this] { go_on(SIGKILL); }},
        {"is killed again", [this] { go_on(SIGKILL); }},
        {"is told to stop",
         [this] {
           go_on(random_.one_of<int>({SIGTERM, SIGUSR1, SIGHUP}));
         }},
        {"is interrupted", [this] { go_on(SIGINT); }},
        {"meets a full disk", [this] { fill_disk(); }},
        {"has a checkpoint damaged", [this] { damage(); }},
        {"has files removed", [this] { remove(); }},
        {"loses its metrics while it runs", [this] { remove_metrics_meanwhile(); }},
        {"has its folder moved away while it runs", [this] { move_meanwhile(); }},
        {"is given another recipe", [this] { change_recipe(); }},
        {"is evaluated", [this] { use_checkpoint(); }},
        {"is begun twice", [this] { begin_twice(); }},
    };
    std::vector<std::string> names;
    for (const auto& [name, event] : events) names.push_back(name);
    const auto end = Clock::now() + time;
    while ((Clock::now() < end || num_events_ < 5) && !::testing::Test::HasFailure()) {
      const std::string name = random_.one_of(names);
      SCOPED_TRACE(fmt::format("event {}: the run {}", num_events_, name));
      if (std::getenv("SHERD_LIFE_VERBOSE")) fmt::print("{} {}\n", num_events_, name);
      events.at(name)();
      ++num_events_;
      if (model_.newest_good() == kLifeSteps && !::testing::Test::HasFailure()) finish();
    }
  }

  int num_events() const { return num_events_; }
  int num_lives() const { return num_lives_; }

 private:
  // What a resume may change without changing a bit.
  std::vector<std::string> command() {
    const std::vector<std::string> sets = {
        fmt::format("zero_optimization.stage={}", random_.whole(0, 3)),
        fmt::format("zero_optimization.prefetch_depth={}", random_.whole(0, 2)),
        fmt::format("checkpoint.interval={}", random_.whole(1, 5)),
        fmt::format("checkpoint.async={}", random_.chance(0.5)),
        fmt::format("checkpoint.keep_last={}", random_.whole(1, 4)),
        fmt::format("run.num_threads={}", random_.whole(1, 2))};
    std::vector<std::string> words = {"train", model_.recipe(), "--ranks",
                                      random_.chance(0.5) ? "1" : "4"};
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    return words;
  }

  void go_on(int signal) {
    SherdProcess process(command());
    if (signal != 0) {
      // Most have saved something; the others may be hit at the start.
      if (random_.chance(0.7)) process.wait_for("saved ");
      process.let_run(std::chrono::microseconds(random_.whole(0, 300'000)));
      process.send(signal);
    }
    const Ended ended = process.wait();
    SCOPED_TRACE(ended.out + ended.err);
    expect_code(ended, signal);
    model_.expect_right_after(ended);
  }

  // A run that had ended before the signal came is a run that ended.
  void expect_code(const Ended& ended, int signal) {
    if (model_.any_damaged() && ended.exit_code == 5) return;  // saves failed in a row
    if (ended.exit_code == 0 || (signal == SIGKILL && ended.signal == SIGKILL)) return;
    if (signal == SIGINT) {
      // Before the handlers are there, the signal has its usual effect.
      EXPECT_TRUE(ended.exit_code == 130 || ended.signal == SIGINT) << ended.exit_code;
    } else if (signal == SIGTERM || signal == SIGUSR1 || signal == SIGHUP) {
      EXPECT_TRUE(ended.exit_code == 75 || ended.signal == signal) << ended.exit_code;
    } else {
      ADD_FAILURE() << "it ended with " << ended.exit_code << ", signal " << ended.signal;
    }
  }

  // Somewhere in the middle of what a checkpoint needs; then there is room again.
  void fill_disk() {
    const Ended ended = run_sherd(command(), static_cast<int>(random_.whole(1, 120)));
    SCOPED_TRACE(ended.out + ended.err);
    EXPECT_GE(ended.exit_code, 0) << "signal " << ended.signal;
    model_.expect_right_after(ended);
  }

  void damage() {
    const std::vector<std::int64_t> good = model_.good_steps();
    if (good.empty()) return;
    model_.damage(good.back(), static_cast<std::uint64_t>(random_.whole(0, 1 << 20)));
    if (good.size() == 1) {
      const Ended refused = run_sherd(command());
      EXPECT_EQ(refused.exit_code, 3) << "all are damaged: " << refused.out << refused.err;
      model_.start_over();
      return;
    }
    if (random_.chance(0.5)) go_on(random_.chance(0.5) ? SIGKILL : 0);
    model_.remove_damaged();
  }

  void remove() {
    const std::vector<std::int64_t> steps = model_.steps();
    switch (random_.whole(0, 2)) {
      case 0:
        model_.remove_file(
            random_.one_of({"metrics.jsonl", "recipe.yaml", "memory.json", "checkpoints/latest"}));
        break;
      case 1:
        if (!steps.empty()) model_.remove_checkpoint(random_.one_of(steps));
        break;
      default:
        for (const std::int64_t step : steps) {
          if (random_.chance(0.5)) model_.remove_checkpoint(step);
        }
    }
  }

  // The metrics continue in a new file; that earlier lines are gone isn't the run's fault.
  void remove_metrics_meanwhile() {
    SherdProcess process(command());
    if (process.wait_for("saved ")) model_.remove_metrics_meanwhile();
    const Ended ended = process.wait();
    SCOPED_TRACE(ended.out + ended.err);
    EXPECT_EQ(ended.exit_code, 0);
    model_.expect_right_after(ended);
  }

  // Nothing more is written there, and nothing in its old place; it says so and ends.
  void move_meanwhile() {
    SherdProcess process(command());
    if (process.wait_for("saved ")) model_.move_away();
    const Ended ended = process.wait();
    SCOPED_TRACE(ended.out + ended.err);
    model_.move_back();
    // It may have been in its last write.
    EXPECT_TRUE(ended.exit_code == 0 || ended.exit_code == 3) << ended.exit_code;
    model_.expect_right_after(ended);
  }

  // Another seed, length or optimizer is another run.
  void change_recipe() {
    if (model_.newest_good() == 0) return;
    const std::string before = model_.contents();
    std::vector<std::string> words = command();
    words.insert(
        words.end(),
        {"--set", random_.one_of({"run.seed=99", "training.seq_length=8", "optimizer.type=sgd"})});
    const Ended refused = run_sherd(words);
    EXPECT_EQ(refused.exit_code, 2) << refused.out << refused.err;
    EXPECT_EQ(model_.contents(), before) << "a refused run has changed the folder";
  }

  // The same loss and the same text as from the run that wasn't disturbed.
  void use_checkpoint() {
    const std::vector<std::int64_t> steps = model_.good_steps();
    if (steps.empty()) return;
    const std::int64_t step = random_.one_of(steps);
    const std::vector<std::string> command =
        random_.chance(0.5) ? std::vector<std::string>{"eval", "--json"}
                            : std::vector<std::string>{"sample", "--tokens", "9"};
    const auto run = [&](const std::string& path) {
      std::vector<std::string> words = {command[0], path};
      words.insert(words.end(), command.begin() + 1, command.end());
      const Ended ended = run_sherd(words);
      EXPECT_EQ(ended.exit_code, 0) << ended.err;
      return ended.out;
    };
    const std::string before = model_.contents();
    EXPECT_EQ(run(model_.checkpoint(step)), run(model_.reference_checkpoint(step)));
    EXPECT_EQ(run_sherd({"verify", model_.checkpoint(step), "--deep"}).exit_code, 0);
    EXPECT_EQ(model_.contents(), before) << "reading has changed the folder";
  }

  void begin_twice() {
    SherdProcess first(command());
    if (first.wait_for("saved ")) {
      const Ended second = run_sherd(command());
      // The first may have ended meanwhile; then the second continues where it was.
      const Ended ended = first.wait();
      EXPECT_TRUE(second.exit_code == 0 || second.exit_code == 2) << second.err;
      EXPECT_EQ(ended.exit_code, 0) << ended.err;
      return model_.expect_right_after(ended);
    }
    model_.expect_right_after(first.wait());
  }

  // Once more changes nothing; then another run begins.
  void finish() {
    const Ended again = run_sherd(command());
    EXPECT_EQ(again.exit_code, 0) << again.err;
    model_.expect_right_after(again);
    model_.start_over();
    ++num_lives_;
  }

  RunModel model_;
  Random random_;
  int num_events_ = 0, num_lives_ = 0;
};

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

void live(std::uint64_t default_seed, std::uint64_t default_seconds) {
  const std::uint64_t seed = number_from("SHERD_LIFE_SEED", default_seed);
  fmt::print("SHERD_LIFE_SEED={}\n", seed);
  std::fflush(stdout);
  Life life(seed);
  if (::testing::Test::HasFailure()) return;
  life.live(std::chrono::seconds(number_from("SHERD_LIFE_SECONDS", default_seconds)));
  fmt::print("{} events, {} runs came to their end\n", life.num_events(), life.num_lives());
}

TEST(Life, OfARunLosesNothingAndSaysNothingUntrueWhateverHappens) {
  live(20261122, 30);
}

TEST(LifeSlow, OfARunLosesNothingAndSaysNothingUntrueWhateverHappens) {
  live(std::random_device{}(), 600);
}

}  // namespace
}  // namespace sherd::testing
