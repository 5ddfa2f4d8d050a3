// Ranks that divide the experts have the bits of ranks that all have every expert: full products of what may differ.

#include <gtest/gtest.h>

#include "tests/equivalence/expert_rank_runs.h"

namespace sherd::testing {
namespace {

// Everything with everything, on eight ranks.
TEST(ExpertRanksSlow, HaveTheBitsOfWholeExpertsInTheFullProduct) {
  int runs = 0;
  for (const ModelForm& each : divisible_forms()) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const auto recompute :
           {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
        for (const int threads : {1, 2}) {
          engine::TrainingOptions options = tiny_training(each.shape, 0.05f);
          options.model.tied = false;
          options.model.recompute = recompute;
          const RunShape one{.world_size = 8,
                             .axes = axes(1, 8),
                             .num_micro_steps = 2,
                             .stage = stage,
                             .threads_per_rank = threads};
          const Outcome expected = train(options, one, 3);
          for (const int degree : {2, 4, 8}) {
            for (const int pipeline : {1, 2}) {
              RunShape setup = one;
              setup.axes = axes(degree, 8 / degree, 1, pipeline);
              setup.world_size = 8 * pipeline;
              setup.delay_seed = static_cast<std::uint64_t>(++runs);
              EXPECT_EQ(difference(expected, train(options, setup, 3)), "") << name_of(setup);
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(runs, std::ssize(divisible_forms()) * 4 * 3 * 2 * 3 * 2);
}

// Ways to divide experts' widths and sequences.
struct Way {
  int tensor = 1, context = 1;
  model::ContextMethod method = model::ContextMethod::kUlysses;
};
constexpr Way kWays[] = {{2, 1},
                         {1, 2, model::ContextMethod::kUlysses},
                         {1, 2, model::ContextMethod::kAllGather},
                         {1, 2, model::ContextMethod::kRing},
                         {2, 2, model::ContextMethod::kUlysses},
                         {2, 2, model::ContextMethod::kAllGather},
                         {2, 2, model::ContextMethod::kRing}};

TEST(ExpertRanksSlow, HaveTheBitsOfWholeExpertsOnTensorAndContextRanksInTheFullProduct) {
  int runs = 0;
  for (const ModelForm& each : cuttable_expert_forms()) {
    for (int part = 0; part < 4 * 3 * 7; ++part) {
      const int stage = part % 4, recompute = part / 4 % 3;
      const Way& way = kWays[part / 12];
      engine::TrainingOptions options = tiny_training(each.shape, 0.05f);
      options.model.moe.experts = 8;
      if (options.model.moe.groups > 1) options.model.moe.groups = 4;
      options.model.tied = false;
      options.model.seq_length = 8;
      options.model.kv_heads = 4;
      options.model.recompute = static_cast<model::Recompute>(recompute);
      options.model.context.method = way.method;
      RunShape one{.world_size = 4 * way.tensor * way.context,
                   .axes = axes(1, 4),
                   .num_micro_steps = 2,
                   .stage = stage};
      if (way.context > 1) one.axes.push_back({"context", 2});
      if (way.tensor > 1) one.axes.push_back({"tensor", 2});
      const Outcome expected = train(options, one, 2);
      for (const int degree : {2, 4}) {
        for (const int pipeline : {1, 2}) {
          RunShape setup = one;
          setup.axes = axes(degree, 4 / degree, 1, pipeline);
          if (way.context > 1) setup.axes.push_back({"context", 2});
          if (way.tensor > 1) setup.axes.push_back({"tensor", 2});
          setup.world_size *= pipeline;
          setup.delay_seed = static_cast<std::uint64_t>(++runs);
          EXPECT_EQ(difference(expected, train(options, setup, 2)), "")
              << each.name << " " << name_of(setup);
        }
      }
    }
  }
  EXPECT_EQ(runs, std::ssize(cuttable_expert_forms()) * 4 * 3 * 7 * 2 * 2);
}

}  // namespace
}  // namespace sherd::testing
