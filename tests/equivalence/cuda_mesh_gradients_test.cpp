// Gradients of every parameter of every form of a model, on tensor and context ranks that share a GPU: those of one rank
// on a CPU. After a step of SGD a weight has moved by its gradient.

#include <gtest/gtest.h>

#include <map>

#include "tests/equivalence/distance.h"
#include "tests/equivalence/document_training.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/random/pairwise.h"

namespace sherd::testing {
namespace {

using model::ContextMethod;
using Place = RunShape::Place;

struct Cut {
  int tensor = 1, context = 1;
  ContextMethod method = ContextMethod::kUlysses;
};

// The first five in CI.
constexpr int kInCi = 5;
constexpr Cut kCuts[] = {{.tensor = 4},
                         {.context = 2},
                         {.context = 2, .method = ContextMethod::kAllGather},
                         {.context = 3, .method = ContextMethod::kRing},
                         {.tensor = 2, .context = 2, .method = ContextMethod::kRing},
                         {.tensor = 2},
                         {.context = 2, .method = ContextMethod::kRing},
                         {.context = 4, .method = ContextMethod::kAllGather},
                         {.tensor = 2, .context = 2},
                         {.tensor = 2, .context = 2, .method = ContextMethod::kAllGather},
                         {.tensor = 4, .context = 3, .method = ContextMethod::kRing}};

engine::TrainingOptions options_of(const model::ModelShape& form, const Cut& cut) {
  engine::TrainingOptions options = tiny_training(form, 0.5f);
  options.model.seq_length = 12;  // which 2, 3 and 4 ranks share, in halves too
  options.model.max_positions = 13;
  // Ulysses deals heads out.
  if (cut.context > 1 && cut.method == ContextMethod::kUlysses) options.model.kv_heads = 4;
  options.model.context.method = cut.method;
  options.optimizer.type = optim::OptimizerType::kSgd;
  options.optimizer.momentum = 0.9f;
  options.lr_schedule.lr = 0.05;
  return options;
}

class CudaMeshGradients : public DocumentTraining {
 protected:
  CudaMeshGradients() : DocumentTraining(12) {}
  void SetUp() override {
    const CudaSystem system = cuda_system();
    if (!system.problem.empty()) GTEST_SKIP() << "no GPU: " << system.problem;
  }

  // Two micro-batches in a step, of which several shards have one each.
  void expect_the_cpus(const ModelForm& form, const Cut& cut, int stage, int shards, bool shared) {
    engine::TrainingOptions options = options_of(form.shape, cut);
    // For one CPU rank: what it ends with, and where it began.
    auto& [one, start] = of_one_rank_[{form.name, options.model.kv_heads}];
    const RunShape alone{.num_micro_steps = 2};
    if (one.losses.empty()) {
      one = testing::train(options, alone, 1);
      engine::TrainingOptions still = options;
      still.lr_schedule.lr = 0.0;
      start = testing::train(still, alone, 1);
    }
    options.model.part.sequence_parallel = shared && cut.tensor > 1;
    const RunShape setup{
        .world_size = shards * cut.context * cut.tensor,
        .axes = {{"shard", shards}, {"context", cut.context}, {"tensor", cut.tensor}},
        .num_micro_steps = 2 / shards,
        .stage = stage,
        .place = Place::kGpu};
    const Outcome parts = testing::train(options, setup, 1);
    for (const auto& [name, values] : one.parameters) {
      const double way = distance(values, start.parameters.at(name));
      EXPECT_LE(distance(parts.parameters.at(name), values), 1e-4 * way + 1e-7 * length(values))
          << name << " of " << form.name << ", " << name_of(setup) << ", method "
          << static_cast<int>(cut.method) << (shared ? ", tokens shared" : "");
    }
  }

 private:
  std::map<std::pair<std::string, std::int64_t>, std::pair<Outcome, Outcome>> of_one_rank_;
};

// Norms of heads and projections, windows, caps, parallel branches, dropout; copies of key/value heads. Which stage, shards
// and shared tokens goes with which form follows from a cover of their pairs.
class CudaMeshForms : public CudaMeshGradients, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Cuts, CudaMeshForms, ::testing::Range(0, kInCi));

TEST_P(CudaMeshForms, HaveTheGradientsOfTheCpusRank) {
  const std::vector<ModelForm> forms = cuttable_forms();
  const auto num_forms = static_cast<int>(forms.size());
  for (const std::vector<int>& row : pairwise_cover({num_forms, kInCi, 4, 2, 2})) {
    if (row[1] != GetParam()) continue;
    expect_the_cpus(forms[static_cast<std::size_t>(row[0])], kCuts[row[1]], row[2], 1 + row[3],
                    row[4] == 1);
  }
}

using CudaMeshGradientsSlow = CudaMeshGradients;

TEST_F(CudaMeshGradientsSlow, OfEveryFormOnEveryMeshAreTheCpusOnOneRank) {
  for (const ModelForm& form : cuttable_forms()) {
    for (const Cut& cut : kCuts) {
      for (int stage = 0; stage < 4; ++stage) {
        for (const bool shared : {false, true}) {
          expect_the_cpus(form, cut, stage, 1 + stage % 2, shared);
        }
      }
    }
  }
}

// They begin and end anywhere in the ranks' parts; positions restart with each.
TEST_F(CudaMeshGradients, OfDocumentsApartAreTheCpusOnOneRank) {
  for (const bool tied : {false, true}) {
    engine::TrainingOptions options = options_of(cuttable(tiny_model(tied), 2), {});
    options.model.vocab_size = 41;
    const RunShape alone{.num_micro_steps = 2};
    const Outcome one = train(options, alone, 1);
    engine::TrainingOptions still = options;
    still.lr_schedule.lr = 0.0;
    const Outcome start = train(still, alone, 1);
    for (const Cut& cut : {kCuts[0], kCuts[2], kCuts[3]}) {
      options.model.context.method = cut.method;
      const RunShape setup{.world_size = cut.context * cut.tensor,
                           .axes = {{"context", cut.context}, {"tensor", cut.tensor}},
                           .num_micro_steps = 2,
                           .stage = cut.context,
                           .place = Place::kGpu};
      const Outcome parts = train(options, setup, 1);
      EXPECT_EQ(parts.losses.back(), one.losses.back()) << "tokens of the evaluation";
      for (const auto& [name, values] : one.parameters) {
        const double way = distance(values, start.parameters.at(name));
        EXPECT_LE(distance(parts.parameters.at(name), values), 1e-4 * way + 1e-7 * length(values))
            << name << ", " << name_of(setup);
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
