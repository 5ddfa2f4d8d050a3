#include "core/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "core/thread_team.h"
#include "core/trace.h"
#include "tests/support/runs/few_threads.h"

namespace sherd {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<Stream> worker(std::string name, BoundaryHook hook = nullptr,
                               Trace* trace = nullptr) {
  StreamOptions options;
  options.name = std::move(name);
  options.hook = std::move(hook);
  options.trace = trace;
  return make_cpu_worker_stream(std::move(options));
}

std::unique_ptr<Stream> compute(BoundaryHook hook = nullptr, Trace* trace = nullptr) {
  StreamOptions options;
  options.hook = std::move(hook);
  options.trace = trace;
  return make_cpu_compute_stream(std::move(options));
}

// Stops a stream at every boundary with this label: an injected delay, as communicators' tests use.
BoundaryHook delay_at(std::string label, std::chrono::milliseconds delay) {
  return [label = std::move(label), delay](std::string_view, std::string_view at) {
    if (at == label) std::this_thread::sleep_for(delay);
  };
}

TEST(WorkerStream, RunsItsWorkInOrderOnItsOwnThread) {
  const auto stream = worker("gather");
  std::vector<int> order;
  std::thread::id thread;
  for (int i = 0; i < 100; ++i) {
    stream->run("work", [&, i] {
      order.push_back(i);
      thread = std::this_thread::get_id();
    });
  }
  stream->synchronize();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(ComputeStream, RunsItsWorkAtTheCallOnTheCallingThread) {
  const auto stream = compute();
  std::thread::id thread;
  stream->run("work", [&] { thread = std::this_thread::get_id(); });
  EXPECT_EQ(thread, std::this_thread::get_id());
  EXPECT_EQ(stream->device(), DeviceKind::kCpu);
}

TEST(ComputeStream, HasTheThreadsItWasGiven) {
  StreamOptions options;
  options.num_threads = 3;
  EXPECT_EQ(make_cpu_compute_stream(std::move(options))->team().num_threads(), 3);
}

TEST(Event, OrdersTwoWorkersThoughTheFirstIsLate) {
  const auto producer = worker("producer", delay_at("produce", 20ms));
  const auto consumer = worker("consumer");
  const auto ready = make_cpu_event();
  int value = 0, seen = 0;
  producer->run("produce", [&] { value = 42; });
  producer->record(*ready);
  consumer->wait(*ready);
  consumer->run("consume", [&] { seen = value; });
  consumer->synchronize();
  EXPECT_EQ(seen, 42);
}

TEST(Event, OrdersAPingPongOfTwoWorkersWhicheverIsLate) {
  for (const auto& [first_delay, second_delay] : {std::pair{0ms, 0ms}, {2ms, 0ms}, {0ms, 2ms}}) {
    const auto first = worker("first", delay_at("ping", first_delay));
    const auto second = worker("second", delay_at("pong", second_delay));
    const auto ping = make_cpu_event(), pong = make_cpu_event();
    std::vector<int> values;  // guarded by the events alone
    for (int i = 0; i < 10; ++i) {
      first->wait(*pong);  // never recorded in the first round
      first->run("ping", [&values, i] { values.push_back(2 * i); });
      first->record(*ping);
      second->wait(*ping);
      second->run("pong", [&values, i] { values.push_back(2 * i + 1); });
      second->record(*pong);
    }
    second->synchronize();
    ASSERT_EQ(values.size(), 20u);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], i);
  }
}

TEST(Event, MakesTheComputeStreamWaitForAWorker) {
  const auto producer = worker("producer", delay_at("produce", 20ms));
  const auto stream = compute();
  const auto ready = make_cpu_event();
  int value = 0;
  producer->run("produce", [&] { value = 42; });
  producer->record(*ready);
  stream->wait(*ready);
  EXPECT_EQ(value, 42);
}

TEST(Event, MakesAWorkerWaitForTheComputeStream) {
  const auto consumer = worker("consumer");
  const auto stream = compute();
  const auto ready = make_cpu_event();
  int value = 0, seen = 0;
  stream->run("produce", [&] { value = 42; });
  stream->record(*ready);
  consumer->wait(*ready);
  consumer->run("consume", [&] { seen = value; });
  consumer->synchronize();
  EXPECT_EQ(seen, 42);
}

TEST(Event, NeverRecordedHoldsNobodyUp) {
  const auto event = make_cpu_event();
  const auto stream = compute();
  stream->wait(*event);
  const auto second = worker("worker");
  bool ran = false;
  second->wait(*event);
  second->run("work", [&] { ran = true; });
  second->synchronize();
  EXPECT_TRUE(ran);
}

// The consumer says that it is about to wait, and only then the producer's delay begins; half of it
// is left to whatever else the machine does in between.
TEST(Stream, CountsTheTimeItWaits) {
  constexpr auto kDelay = 200ms;
  for (const bool on_worker : {true, false}) {
    std::promise<void> about_to_wait;
    const auto producer = worker("producer");
    const auto ready = make_cpu_event();
    producer->run("late", [&, begun = about_to_wait.get_future().share()] {
      begun.wait();
      std::this_thread::sleep_for(kDelay);
    });
    producer->record(*ready);

    const auto consumer = on_worker ? worker("consumer") : compute();
    EXPECT_EQ(consumer->waited().count(), 0);
    consumer->run("announce", [&] { about_to_wait.set_value(); });
    consumer->wait(*ready);
    consumer->synchronize();
    EXPECT_GE(consumer->waited(), kDelay / 2);

    const auto before = consumer->waited();
    consumer->wait(*ready);  // reached long ago
    consumer->synchronize();
    EXPECT_EQ(consumer->waited(), before) << "nothing to wait for";
  }
}

TEST(WorkerStream, CountsTheProcessorTimeOfItsOwnThread) {
  const auto stream = worker("busy");
  stream->run("spin", [&] {
    while (stream->cpu_time() < 2ms) {
    }
  });
  stream->synchronize();
  EXPECT_GE(stream->cpu_time(), 2ms);
}

TEST(Stream, FailureReachesWhoeverWaitsForALaterEvent) {
  const auto broken = worker("broken"), second = worker("second");
  const auto stream = compute();
  const auto event = make_cpu_event(), next = make_cpu_event();
  bool dropped = true;
  broken->run("fail", [] { throw PeerError("rank 3 is gone"); });
  broken->run("later", [&] { dropped = false; });
  broken->record(*event);
  EXPECT_THROW(stream->wait(*event), PeerError);

  // Through a second worker: it fails in turn.
  second->wait(*event);
  second->run("later", [&] { dropped = false; });
  second->record(*next);
  try {
    stream->wait(*next);
    ADD_FAILURE() << "the wait returned";
  } catch (const PeerError& error) {
    EXPECT_STREQ(error.what(), "rank 3 is gone");
  }
  EXPECT_THROW(broken->synchronize(), PeerError);
  EXPECT_THROW(second->synchronize(), PeerError);
  EXPECT_TRUE(dropped) << "work after the failure ran";
}

TEST(Stream, FailureDoesNotReachAnEventRecordedBefore) {
  const auto stream = worker("worker");
  const auto waiter = compute();
  const auto before = make_cpu_event();
  stream->run("fine", [] {});
  stream->record(*before);
  stream->run("fail", [] { throw DataError("damaged"); });
  EXPECT_NO_THROW(waiter->wait(*before));
  EXPECT_THROW(stream->synchronize(), DataError);
  EXPECT_NO_THROW(waiter->wait(*before));
}

TEST(ComputeStream, ThrowsWhatItsWorkThrows) {
  const auto stream = compute();
  EXPECT_THROW(stream->run("fail", [] { throw TrainingError("loss is nan"); }), TrainingError);
}

TEST(WorkerStream, CanBeDestroyedAfterAFailure) {
  const auto event = make_cpu_event();
  {
    const auto stream = worker("broken");
    stream->run("fail", [] { throw PeerError("gone"); });
    stream->record(*event);
  }
  EXPECT_THROW(compute()->wait(*event), PeerError);
}

TEST(BoundaryHook, IsCalledAroundWorkAndAtRecordAndWait) {
  const auto event = make_cpu_event();
  for (const bool on_worker : {true, false}) {
    std::mutex mutex;
    std::vector<std::string> labels;
    const BoundaryHook hook = [&](std::string_view stream, std::string_view label) {
      EXPECT_EQ(stream, on_worker ? "named" : "compute");
      std::lock_guard lock(mutex);
      labels.emplace_back(label);
    };
    const auto stream = on_worker ? worker("named", hook) : compute(hook);
    stream->run("work", [&] {
      std::lock_guard lock(mutex);
      labels.emplace_back("-");
    });
    stream->record(*event);
    stream->wait(*event);
    stream->synchronize();
    std::lock_guard lock(mutex);
    ASSERT_GE(labels.size(), 5u);
    EXPECT_EQ((std::vector<std::string>(labels.begin(), labels.begin() + 4)),
              (std::vector<std::string>{"work", "-", "work", "record"}));
    EXPECT_EQ(labels[4], "wait");
  }
}

TEST(TraceSpan, MarksWhatAStreamDoes) {
  Trace trace;
  const auto stream = compute(nullptr, &trace);
  { TraceSpan span(*stream, "not yet started"); }
  trace.start();
  {
    TraceSpan outer(*stream, "forward");
    TraceSpan inner(*stream, "block.0");
  }
  const std::vector<Trace::Span> spans = trace.spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].label, "block.0");
  EXPECT_EQ(spans[1].label, "forward");
  EXPECT_LE(spans[1].begin, spans[0].begin);
  EXPECT_GE(spans[1].end, spans[0].end);
}

TEST(WorkerStream, TracesItsWork) {
  Trace trace;
  trace.start();
  const auto stream = worker("reduce", nullptr, &trace);
  stream->run("reduce_scatter", [] {});
  stream->synchronize();
  const std::vector<Trace::Span> spans = trace.spans();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].stream, "reduce");
  EXPECT_EQ(spans[0].label, "reduce_scatter");
}

TEST(Stream, AThreadThatTheMachineRefusesIsAnErrorInASentence) {
  EXPECT_EXIT(
      {
        test::allow_threads(0);
        try {
          worker("gather");
        } catch (const TrainingError& error) {
          std::fputs(error.what(), stderr);
          std::_Exit(error.exit_code());
        }
      },
      testing::ExitedWithCode(5), "refused a thread for the gather stream of rank 0: ");
}

}  // namespace
}  // namespace sherd
