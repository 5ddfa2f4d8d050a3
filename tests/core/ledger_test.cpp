// Clocks of streams that keep a ledger: what ends when, of kernels that take exactly so long.
#include "core/ledger.h"

#include <gtest/gtest.h>

namespace sherd {
namespace {

// A launch takes as many seconds as it has flops, a collective as many as bytes, a call one of the host's.
class ToldLedger final : public Ledger {
 public:
  double launch(const Launch& launch) override { return launch.flops; }
  double exchange(const Exchange& exchange) override { return static_cast<double>(exchange.bytes); }
  double host_seconds_of_a_call() const override { return 1.0; }
};

Launches kernel(double seconds) {
  return {{.kernel = "kernel", .flops = seconds}};
}

StreamOptions named(StreamPurpose purpose) {
  StreamOptions options;
  options.purpose = purpose;
  return options;
}

class LedgerStreams : public ::testing::Test {
 protected:
  ToldLedger ledger_;
  LedgerStream compute_{named(StreamPurpose::kCompute), {}, ledger_};
  LedgerStream gather_{named(StreamPurpose::kGather), {}, ledger_};
};

TEST_F(LedgerStreams, AKernelBeginsNoEarlierThanItWasLaunched) {
  for (int i = 0; i < 10; ++i) compute_.add(kernel(0.1));
  compute_.add(kernel(10.0));
  EXPECT_NEAR(compute_.now(), 11.0 + 10.0, 1e-9);
}

TEST_F(LedgerStreams, AStreamThatWaitsGoesOnWhenTheOtherHasComeThere) {
  const auto arrived = gather_.make_event();
  gather_.add(Exchange{"all_gather", 20, {0, 1}});  // from 1 to 21
  gather_.record(*arrived);
  compute_.add(kernel(4.0));  // from 2 to 6
  compute_.wait(*arrived);
  EXPECT_NEAR(compute_.now(), 21.0, 1e-9);
  EXPECT_EQ(compute_.waited(), std::chrono::seconds(15));
  EXPECT_EQ(ledger_.beside_compute, 0.0);
}

TEST_F(LedgerStreams, WhatWasRecordedLaterIsntWaitedFor) {
  const auto arrived = gather_.make_event();
  gather_.add(kernel(2.0));  // from 1 to 3
  gather_.record(*arrived);
  gather_.add(kernel(50.0));
  compute_.wait(*arrived);
  EXPECT_NEAR(compute_.now(), 3.0, 1e-9);
  EXPECT_EQ(compute_.waited().count(), std::chrono::nanoseconds(std::chrono::seconds(1)).count());
}

TEST_F(LedgerStreams, AKernelThatOverlapsTheComputationIsPaidByWaitingForItOrLater) {
  const auto cast = gather_.make_event();
  gather_.add(kernel(10.0));  // from 1 to 11
  gather_.record(*cast);
  compute_.add(kernel(4.0));  // from 2 to 6
  EXPECT_NEAR(ledger_.beside_compute, 10.0, 1e-9);
  compute_.wait(*cast);  // 5 of its 10 seconds
  EXPECT_NEAR(ledger_.beside_compute, 5.0, 1e-9);
}

TEST_F(LedgerStreams, TheHostGoesOnWhenAStreamIsDone) {
  compute_.add(kernel(30.0));
  compute_.synchronize();
  gather_.add(kernel(1.0));
  EXPECT_NEAR(gather_.now(), 31.0 + 1.0 + 1.0, 1e-9);
}

TEST_F(LedgerStreams, OneGraphIsOneCall) {
  LedgerStream graphs(named(StreamPurpose::kCompute), {.graphs = true}, ledger_);
  ASSERT_TRUE(graphs.keeps_sections());
  graphs.section("key", [&] {
    for (int i = 0; i < 10; ++i) graphs.add(kernel(0.5));
  });
  EXPECT_NEAR(graphs.now(), 1.0 + 5.0, 1e-9);
  EXPECT_NEAR(ledger_.host_now, 1.0, 1e-9);
}

}  // namespace
}  // namespace sherd
