// Requests to stop that come before a run has begun.
#include "engine/launch/early_stop.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <memory>
#include <thread>

#include "engine/launch/stop_signals.h"

namespace sherd::engine {
namespace {

using sharding::ControlLinks;
using sharding::ProcessEnd;

// Threads that are processes to one another.
std::vector<std::unique_ptr<ControlLinks>> connected(int count) {
  std::promise<std::string> promise;
  const std::shared_future<std::string> address = promise.get_future().share();
  std::vector<std::unique_ptr<ControlLinks>> links(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int process = 0; process < count; ++process) {
    threads.emplace_back([&, process] {
      const ControlLinks::Options options{process, count, std::chrono::minutes(10)};
      links[static_cast<std::size_t>(process)] =
          process > 0 ? ControlLinks::connect(options, address.get())
                      : ControlLinks::listen(options, true,
                                             [&](const auto& text) { promise.set_value(text); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return links;
}

TEST(EarlyStop, ASignalToOneProcessEndsAllAndOneOfThemWasAsked) {
  constexpr const char* kText = "SIGUSR1 before the run began; start it again.";
  const auto links = connected(3);
  std::vector<std::promise<ProcessEnd>> ends(3);
  std::vector<std::unique_ptr<EarlyStop>> stops;
  for (std::size_t process = 0; process < 3; ++process) {
    stops.push_back(std::make_unique<EarlyStop>(
        *links[process],
        EarlyStop::Options{
            [&ends, process](const ProcessEnd& end) { ends[process].set_value(end); },
            [] { return 1; }, [process] { return process == 1 ? SIGUSR1 : 0; }}));
  }
  for (std::size_t process = 0; process < 3; ++process) {
    const ProcessEnd end = ends[process].get_future().get();
    EXPECT_EQ(end.exit_code, process == 1 ? 75 : 4);
    EXPECT_EQ(end.message, kText);
    EXPECT_EQ(end.consequence, process != 1);
  }
  stops.clear();
  // The abort is a message of its own, which may come after what the others were told.
  for (const auto& link : links) {
    while (!link->aborted()) std::this_thread::yield();
    EXPECT_EQ(link->reason(), kText);
  }
}

// mpirun ends all processes where one has failed.
TEST(EarlyStop, ASignalAfterAFailureIsAConsequenceOfIt) {
  const auto links = connected(1);
  links[0]->abort("disk full");
  std::promise<ProcessEnd> end;
  const EarlyStop stop(*links[0], {[&](const ProcessEnd& word) { end.set_value(word); },
                                   [] { return 1; }, [] { return SIGTERM; }});
  const ProcessEnd word = end.get_future().get();
  EXPECT_EQ(word.exit_code, 4);
  EXPECT_EQ(word.message, "disk full");
  EXPECT_TRUE(word.consequence);
}

std::promise<void>* terminated = nullptr;

TEST(EarlyStop, AProcessWhoseMpirunHasGoneEndsAsIfItWereAskedTo) {
  std::promise<void> asked;
  terminated = &asked;
  ::signal(SIGTERM, [](int) { std::exchange(terminated, nullptr)->set_value(); });
  const auto links = connected(1);
  int looks = 0;
  {
    const EarlyStop stop(*links[0], {[](const ProcessEnd&) { FAIL(); },
                                     [&] { return ++looks < 3 ? 4711 : 1; }, [] { return 0; }});
    asked.get_future().wait();
  }
  ::signal(SIGTERM, SIG_DFL);
}

}  // namespace
}  // namespace sherd::engine
