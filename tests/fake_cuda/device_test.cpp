// core/cuda_device.cpp and core/cuda_stream.cpp as they are, on a fake machine.
#include <gtest/gtest.h>

#include "core/cuda_device.h"
#include "engine/launch/machine.h"
#include "engine/plan/memory_report.h"
#include "tests/fake_cuda/machine.h"
#include "tests/fake_cuda/scheduler.h"
#include "tests/support/values/error_text.h"

namespace sherd {
namespace {

using std::chrono::nanoseconds;

std::unique_ptr<CudaStream> stream_for(StreamPurpose purpose, int device = 0,
                                       CudaStreamOptions cuda = {}) {
  StreamOptions options;
  options.purpose = purpose;
  options.name = "stream";
  cuda.device = device;
  return make_cuda_stream(options, cuda);
}

class OnFakeMachine : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(fake_cuda::left_behind(), "");
    EXPECT_EQ(fake_cuda::races(), std::vector<std::string>());
  }
};

TEST_F(OnFakeMachine, AskingWhatThereIsMakesNoContextAnywhere) {
  fake_cuda::start({.num_devices = 8});
  EXPECT_EQ(cuda_system().devices.size(), 8u);
  EXPECT_NO_THROW(require_cuda_devices(8));
  EXPECT_EQ(fake_cuda::contexts(), std::set<int>());
}

TEST_F(OnFakeMachine, ARunFitsIntoTheGpusOfItsRanksAndTouchesNoOther) {
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  fake_cuda::start({.num_devices = 4, .free_bytes = {60 * kGiB, 50 * kGiB, kGiB, 2 * kGiB}});
  engine::Recipe recipe;
  recipe.run.device = engine::DeviceChoice::kCuda;
  recipe.parallelism.data_parallel_shard_degree = 2;
  recipe.parallelism.data_parallel_replicate_degree = 1;
  recipe.parallelism.pipeline_parallel_degree = 1;
  recipe.parallelism.tensor_parallel_degree = 1;
  recipe.parallelism.context_parallel_degree = 1;
  EXPECT_EQ(engine::device_limit(recipe).bytes,
            static_cast<std::int64_t>(50 * kGiB) - engine::library_reserve_bytes(2, false));
  EXPECT_EQ(fake_cuda::contexts(), (std::set{0, 1}));
  recipe.parallelism.data_parallel_shard_degree = 1;
  recipe.parallelism.tensor_parallel_degree = 2;  // on one key/value head, updated by Muon
  recipe.model.num_kv_heads = 1;
  recipe.optimizer.type = optim::OptimizerType::kMuon;
  EXPECT_EQ(
      engine::device_limit(recipe).bytes,
      static_cast<std::int64_t>(50 * kGiB) - engine::library_reserve_bytes(1, false, {2, 2, 2, 2}));
  recipe.parallelism.tensor_parallel_degree = 1;
  recipe.parallelism.context_parallel_degree = 2;
  EXPECT_EQ(engine::device_limit(recipe).bytes,
            static_cast<std::int64_t>(50 * kGiB) - engine::library_reserve_bytes(2, false, {2}));
  recipe.run.share_device = true;
  EXPECT_EQ(engine::device_limit(recipe).bytes,
            (static_cast<std::int64_t>(60 * kGiB) - engine::library_reserve_bytes(2, true)) / 2);
}

TEST_F(OnFakeMachine, EveryGroupThatARunJoinsHasRoom) {
  fake_cuda::start({.num_devices = 8});
  engine::Recipe recipe;
  recipe.run.device = engine::DeviceChoice::kCuda;
  recipe.model.tie_embeddings = true;
  recipe.zero_optimization.shard_optimizer_over_replicas = true;
  recipe.parallelism.data_parallel_shard_degree = 2;
  recipe.parallelism.data_parallel_replicate_degree = 2;
  recipe.parallelism.pipeline_parallel_degree = 2;
  recipe.parallelism.pipeline_chunks_per_rank = 1;
  recipe.parallelism.tensor_parallel_degree = 1;
  recipe.parallelism.context_parallel_degree = 1;
  // The world's 8; replicas twice; two directions at each of two ends, and the tied matrix.
  EXPECT_EQ(
      engine::device_limit(recipe).bytes,
      (std::int64_t{64} << 30) - engine::library_reserve_bytes(2, false, {8, 2, 2, 2, 2, 2, 2, 2}));
  // A ring's rank has its group, and one with each neighbour.
  engine::Recipe ring = recipe;
  ring.parallelism.pipeline_parallel_degree = ring.parallelism.data_parallel_replicate_degree = 1;
  ring.parallelism.data_parallel_shard_degree = 1;
  ring.parallelism.context_parallel_degree = 4;
  ring.parallelism.context_parallel_method = engine::ContextMethod::kRing;
  EXPECT_EQ(engine::device_limit(ring).bytes,
            (std::int64_t{64} << 30) - engine::library_reserve_bytes(4, false, {4, 2, 2}));
}

TEST_F(OnFakeMachine, ADriverThatIsTooOldIsAUsersErrorWithWhatToDo) {
  fake_cuda::start({.driver_version = 12080});
  const std::string text = test::error_text<UsageError>([] { require_cuda_devices(1); });
  EXPECT_NE(text.find("install driver 580 or newer, or build it with a CUDA 12 toolkit"),
            std::string::npos)
      << text;
}

// The fake's clock advances by one millisecond with every piece of work that a device has done.
TEST_F(OnFakeMachine, CommunicationHasPriorityOverKernels) {
  fake_cuda::start({});
  const auto priority_of = [](StreamPurpose purpose) {
    return stream_for(purpose)->handle()->priority;
  };
  for (const StreamPurpose first : {StreamPurpose::kGather, StreamPurpose::kReduce}) {
    EXPECT_LT(priority_of(first), priority_of(StreamPurpose::kCompute));
  }
  EXPECT_EQ(priority_of(StreamPurpose::kCopy), priority_of(StreamPurpose::kCompute));
}

TEST_F(OnFakeMachine, WaitingForCommunicationIsCountedAndForACopyIsNot) {
  for (const auto& [purpose, counts] :
       {std::pair(StreamPurpose::kGather, true), std::pair(StreamPurpose::kReduce, true),
        std::pair(StreamPurpose::kCopy, false)}) {
    fake_cuda::start({});
    const auto compute = stream_for(StreamPurpose::kCompute), other = stream_for(purpose);
    const auto event = compute->make_event();
    for (int i = 0; i < 20; ++i) other->run("work", [] {});
    other->record(*event);
    compute->wait(*event);
    compute->synchronize();
    other->synchronize();
    EXPECT_EQ(compute->waited() > nanoseconds(0), counts);
  }
}

TEST_F(OnFakeMachine, AStreamWaitsForAnEventInEveryOrderThatTheDeviceMayTake) {
  int early = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    for (const bool waits : {true, false}) {
      fake_cuda::start({.seed = seed});
      const auto first = stream_for(StreamPurpose::kGather);
      const auto second = stream_for(StreamPurpose::kCompute);
      const auto event = first->make_event();
      bool done = false, seen = false;
      first->run("write", [&] { done = true; });
      first->record(*event);
      if (waits) second->wait(*event);
      second->run("read", [&] { seen = done; });
      second->synchronize();
      first->synchronize();
      if (waits) {
        EXPECT_TRUE(seen) << seed;
      } else {
        early += seen ? 0 : 1;
      }
    }
  }
  EXPECT_GT(early, 5);  // without the wait, orders in which it is too early do occur
}

TEST_F(OnFakeMachine, CopiesAreWaitedForThoughTheyArentCounted) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    fake_cuda::start({.seed = seed});
    const auto copies = stream_for(StreamPurpose::kCopy);
    const auto compute = stream_for(StreamPurpose::kCompute);
    const auto memory = cuda_arena_memory(4096);
    const auto event = copies->make_event();
    copies->copy(memory->data(), memory->data() + 1024, 512);
    copies->record(*event);
    compute->wait(*event);
    compute->copy(memory->data() + 1024, memory->data() + 2048, 512);
    compute->synchronize();
    copies->synchronize();
  }
}

TEST_F(OnFakeMachine, ALateMachineCopiesWhatStandsThereWhenSomebodyWaits) {
  fake_cuda::start({.seed = 2});
  const auto stream = stream_for(StreamPurpose::kCopy);
  const auto other = stream_for(StreamPurpose::kCompute);
  const auto from = pinned_arena_memory(4), to = pinned_arena_memory(4);
  *from->data() = 'a';
  stream->copy(from->data(), to->data(), 4);
  *from->data() = 'b';  // too early
  other->run("work", [] {});
  other->synchronize();
  EXPECT_EQ(*to->data(), 0) << "no stream has waited for the copy";
  stream->synchronize();
  EXPECT_EQ(*to->data(), 'b');
}

TEST_F(OnFakeMachine, CopiesThatNothingOrdersAreFoundWhateverOrderTheyRanIn) {
  fake_cuda::start({});
  const auto first = stream_for(StreamPurpose::kGather);
  const auto second = stream_for(StreamPurpose::kCompute);
  const auto memory = cuda_arena_memory(4096);
  const auto event = first->make_event();
  char* data = memory->data();
  first->copy(data, data + 1024, 512);
  first->record(*event);
  second->wait(*event);
  second->copy(data + 1024, data + 2048, 512);  // in order
  first->synchronize();
  second->synchronize();
  EXPECT_EQ(fake_cuda::races(), std::vector<std::string>());
  first->copy(data, data + 1024, 512);
  second->copy(data + 1024, data + 2048, 512);  // not in order
  first->synchronize();
  second->synchronize();
  EXPECT_EQ(fake_cuda::races().size(), 1u);
  fake_cuda::forget_races();
}

TEST_F(OnFakeMachine, HostWorkThatThrowsEndsTheStreamAndIsThrownByTheWait) {
  fake_cuda::start({});
  const auto stream = stream_for(StreamPurpose::kReduce);
  bool later = false;
  stream->run("first", [] { throw DataError("torn"); });
  stream->run("second", [&] { later = true; });
  EXPECT_EQ(test::error_text<DataError>([&] { stream->synchronize(); }), "torn");
  EXPECT_FALSE(later);
}

TEST_F(OnFakeMachine, RanksOnGpusWaitForOthersAsLongAsTheRunSays) {
  fake_cuda::start({.num_devices = 2});
  const auto rendezvous =
      engine::cuda_machine(2, {})->make_rendezvous(std::chrono::milliseconds(100));
  use_cuda_device(0);
  EXPECT_EQ(test::error_text<PeerError>([&] {
              rendezvous->join({"shard", {0, 1}, 0});
            }),
            "rank 0 waited 0.1 s for rank 1 in connecting of shard. Read rank 1's log first.");
}

TEST_F(OnFakeMachine, ASectionIsEnqueuedOnceRecordedOnceAndLaunchedFromThenOn) {
  fake_cuda::start({});
  const auto stream = stream_for(StreamPurpose::kCompute, 0, {.graphs = true});
  int enqueued = 0, done = 0;
  for (int i = 0; i < 5; ++i) {
    stream->section("key", [&] {
      ++enqueued;
      fake_cuda::launch(stream->handle(), {"kernel", [&] { ++done; }});
    });
  }
  stream->synchronize();
  EXPECT_EQ(enqueued, 2);
  EXPECT_EQ(done, 5);
}

TEST_F(OnFakeMachine, WaitingInsideASectionIsAnErrorAndTheStreamWorksOn) {
  fake_cuda::start({});
  const auto stream = stream_for(StreamPurpose::kCompute, 0, {.graphs = true});
  bool done = false;
  const auto section = [&](bool waits) {
    stream->section("key", [&] {
      if (waits) stream->synchronize();
    });
  };
  section(false);
  EXPECT_THROW(section(true), TrainingError);
  fake_cuda::launch(stream->handle(), {"kernel", [&] { done = true; }});
  stream->synchronize();
  EXPECT_TRUE(done);
}

TEST_F(OnFakeMachine, AnEventOfAnotherDeviceIsRefused) {
  fake_cuda::start({.num_devices = 2});
  const auto here = stream_for(StreamPurpose::kCompute, 0);
  use_cuda_device(0);
  const auto event = here->make_event();
  const auto there = stream_for(StreamPurpose::kCompute, 1);
  EXPECT_THROW(there->record(*event), TrainingError);
}

}  // namespace
}  // namespace sherd
