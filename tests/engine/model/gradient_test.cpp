// The whole model's gradient against central differences of its own loss, with dropout on: the mask
// is a function of (seed, step, row), so a small change of a weight meets the same mask again.
//
// Fourth-order differences with step h in f32. A loss of about 4 over 18 tokens is good to 2e-7, so
// a difference is good to about 2e-7 / h = 2e-5, where h^4 is 1e-8: `kNoise` and `kRelative` leave
// a factor of a few.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/model/parameters.h"
#include "engine/model/rng_sites.h"
#include "kernels/philox.h"
#include "kernels/pointwise.h"
#include "kernels/token.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/models/model_values.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

constexpr float kStep = 1e-2f;
constexpr double kNoise = 5e-5;
constexpr double kRelative = 2e-3;
constexpr int kElementsPerParameter = 12;  // of each of three blocks: 36 of every kind

enum class Rows { kWhole, kOfDocuments };
// Two rows of nine tokens: documents of 5 and 3, and a token of padding; then a document of 9.
constexpr std::int32_t kStarts[] = {0, 5, 9, 18}, kLengths[] = {5, 3, 9},
                       kPositions[] = {0, 1, 2, 3, 4, 0, 1, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8};

// An adapter's B begins at zero, where A has no gradient.
void move_away_from_zero(const engine::ShardedModel& model) {
  for (const sharding::UnitState& unit : model.units()) {
    if (!unit.trains()) continue;
    const auto views = unit.layout().views(unit.resident_parameters());
    for (std::size_t p = 0; p < views.size(); ++p) {
      const ParameterSpec& parameter = unit.spec().parameters[p];
      if (!parameter.name.ends_with(".lora_b")) continue;
      kernels::fill_normal(model.rank().compute(), views[p], {13, 0, parameter.index}, 0, 0.0f,
                           0.3f);
    }
  }
}

// One rank that holds everything, so that an element can be changed in place.
class OneRank {
 public:
  OneRank(const engine::TrainingOptions& options, const sharding::Rank& rank,
          Rows rows = Rows::kWhole)
      : model_(options, rank) {
    const model::ModelShape& shape = options.model;
    const auto tokens = static_cast<std::size_t>(shape.tokens());
    tokens_.resize(2 * tokens);
    fill_tokens(shape, 0, 0, tokens_.data(), tokens_.data() + tokens);
    pass_ = {.inputs = {tokens_.data(), DType::kI32, shape.tokens()},
             .targets = {tokens_.data() + tokens, DType::kI32, shape.tokens()},
             .training = true,
             .seed = 7,
             .step = 3,
             .first_row = 5,
             .gradient_scale = 1.0f / static_cast<float>(shape.tokens())};
    if (rows == Rows::kOfDocuments) {
      for (std::size_t t = 0; t < tokens; t += 3) tokens_[tokens + t] = kernels::kNoTarget;
      pass_.documents = {{kStarts, DType::kI32, std::ssize(kStarts)},
                         {kLengths, DType::kI32, std::ssize(kLengths)},
                         {kPositions, DType::kI32, std::ssize(kPositions)}};
    }
    move_away_from_zero(model_);
    compute_gradients(model_, pass_);
    gradients_ = empty_parameters(shape);
    collect_gradients(model_, gradients_);
  }

  engine::ShardedModel& model() { return model_; }
  const ValuesByName& gradients() const { return gradients_; }
  double loss() {
    return compute_loss_sum(model_, pass_) / static_cast<double>(pass_.inputs.numel);
  }
  double difference(float& value) {
    const float kept = value;
    // The steps that were really taken, since value + h is rounded.
    const auto at = [&](float offset) {
      value = kept + offset;
      return std::pair(double{value} - double{kept}, loss());
    };
    const auto [h_up, up] = at(kStep);
    const auto [h_down, down] = at(-kStep);
    const auto [h_up2, up2] = at(2 * kStep);
    const auto [h_down2, down2] = at(-2 * kStep);
    value = kept;
    return (4 * (up - down) / (h_up - h_down) - (up2 - down2) / (h_up2 - h_down2)) / 3;
  }

 private:
  engine::ShardedModel model_;
  std::vector<std::int32_t> tokens_;
  model::Pass pass_;
  ValuesByName gradients_;
};

// "block.2.mlp.up.weight" is of the kind "mlp.up.weight".
std::string kind_of(const std::string& name) {
  return name.starts_with("block.") ? name.substr(name.find('.', 6) + 1) : name;
}

void expect_gradients_match_differences(const model::ModelShape& shape, Rows rows = Rows::kWhole) {
  const engine::TrainingOptions options = tiny_training(shape);
  run_ranks({}, [&](sharding::Rank& rank) {
    OneRank run(options, rank, rows);
    rank.guard([&] {
      std::map<std::string, double> largest;  // by kind: that a test of zeros is not a test
      for (const sharding::UnitState& unit : run.model().units()) {
        if (!unit.trains()) continue;
        const auto views = unit.layout().views(unit.resident_parameters());
        for (std::size_t p = 0; p < views.size(); ++p) {
          const ParameterSpec& parameter = unit.spec().parameters[p];
          const std::vector<float>& gradient = run.gradients().at(parameter.name);
          double& size = largest[kind_of(parameter.name)];
          for (int i = 0; i < kElementsPerParameter; ++i) {
            const auto draw = kernels::random_block({11, 0, parameter.index}, i);
            const std::size_t element = draw.word[0] % gradient.size();
            const double difference = run.difference(views[p].as<float>()[element]);
            EXPECT_NEAR(gradient[element], difference, kNoise + kRelative * std::abs(difference))
                << parameter.name << "[" << element << "]";
            size = std::max(size, std::abs(difference));
          }
        }
      }
      for (const auto& [kind, size] : largest) EXPECT_GT(size, 10 * kNoise) << kind;
    });
  });
}

TEST(ModelGradient, OfAGpt2ShapeMatchesCentralDifferencesUnderDropout) {
  expect_gradients_match_differences(tiny_model(true));
}

TEST(ModelGradient, OfALlamaShapeMatchesCentralDifferencesUnderDropout) {
  expect_gradients_match_differences(tiny_model(false));
}

TEST(ModelGradient, OfMixedShapesMatchesCentralDifferencesUnderDropout) {
  model::ModelShape shape = tiny_model(true);
  shape.positions = model::Positions::kRope;
  shape.activation = kernels::ActivationKind::kSwiGlu;
  expect_gradients_match_differences(shape);
  shape = tiny_model(false);
  shape.positions = model::Positions::kLearned;
  shape.activation = kernels::ActivationKind::kGelu;
  shape.biases = model::Biases::everywhere();  // on projections; an RMS norm has none
  expect_gradients_match_differences(shape);
}

// Of experts all are chosen: a change of a weight that changes the choice has no derivative.
std::vector<ModelForm> forms_to_differentiate() {
  std::vector<ModelForm> forms = forms_on_cpus();
  for (ModelForm& form : forms) {
    model::MoeShape& moe = form.shape.moe;
    moe.per_token = static_cast<int>(moe.experts);
    moe.kept_groups = moe.groups;
    moe.balance = moe.z = 0.0;  // not in the losses of tokens
  }
  return forms;
}

TEST(ModelGradient, OfEveryFormMatchesCentralDifferencesUnderDropout) {
  for (const ModelForm& form : forms_to_differentiate()) {
    SCOPED_TRACE(form.name);
    expect_gradients_match_differences(form.shape);
  }
}

TEST(ModelGradient, OfSeparateDocumentsWithoutSomeTargetsMatchesCentralDifferencesUnderDropout) {
  expect_gradients_match_differences(tiny_model(true), Rows::kOfDocuments);
  for (const ModelForm& form : forms_to_differentiate()) {
    SCOPED_TRACE(form.name);
    expect_gradients_match_differences(form.shape, Rows::kOfDocuments);
  }
}

// Every target that a shape has: the parts of a stacked matrix, or the whole of it.
model::ModelShape with_adapters(model::ModelShape shape, bool parts) {
  shape.adapter = {.rank = 3, .scale = 0.75, .dropout = 0.1};
  const std::vector<std::string> kWholes = {"attention.qkv", "mlp.gate_up"};
  for (const model::AdapterTarget& target : model::possible_targets(shape)) {
    const bool is_whole = std::find(kWholes.begin(), kWholes.end(), target.name) != kWholes.end();
    const bool is_part = target.name == "attention.query" || target.name == "attention.key" ||
                         target.name == "attention.value" || target.name == "mlp.gate" ||
                         (target.name == "mlp.up" && shape.gated());
    if (parts ? !is_whole : !is_part) shape.adapter.targets.push_back(target.name);
  }
  return shape;
}

TEST(ModelGradient, OfAdaptersMatchesCentralDifferencesUnderDropoutInEveryForm) {
  for (const bool parts : {true, false}) {
    for (const bool tied : {true, false}) {
      expect_gradients_match_differences(with_adapters(tiny_model(tied), parts));
    }
    for (const ModelForm& form : forms_to_differentiate()) {
      SCOPED_TRACE(form.name);
      expect_gradients_match_differences(with_adapters(form.shape, parts));
    }
  }
}

TEST(ModelGradient, OfModulesTrainedAlongsideAdaptersMatchesCentralDifferences) {
  for (const bool tied : {true, false}) {
    model::ModelShape shape = tiny_model(tied);
    shape.adapter = {.rank = 2, .targets = {"mlp.down"}};
    shape.adapter.trained_modules = {"embedding.token", "final_norm", "attention.output", "norm1"};
    if (!tied) shape.adapter.trained_modules.push_back("head");
    expect_gradients_match_differences(shape);
    // The backward ends at the first block's first norm.
    shape.adapter.trained_modules = {"norm1"};
    expect_gradients_match_differences(shape);
  }
}

// With nothing to train in or below the first block's attention, the backward ends before it.
TEST(ModelGradient, OfTheMlpsAdaptersAloneIsThatAlongsideAdaptersOfAttention) {
  for (const bool tied : {true, false}) {
    model::ModelShape shape = tiny_model(tied);
    shape.adapter = {.rank = 2, .targets = {"mlp.down", "mlp.up"}};
    ASSERT_FALSE(model::backward_reach(shape, 0).attention);
    expect_gradients_match_differences(shape);
  }
}

// Every target of every block draws a mask of its own.
TEST(AdapterMasks, HaveASiteForEachTargetOfEachBlockAndNoneOfTheModels) {
  std::set<std::uint32_t> sites;
  for (std::int64_t block = 0; block < 10'000; ++block) {
    for (std::size_t target = 0; target < 7; ++target) {
      EXPECT_TRUE(sites.insert(model::adapter_site(block, target)).second);
    }
    EXPECT_FALSE(sites.contains(model::mlp_branch_site(block)));
  }
}

// What the adapter of the queries adds in a pass, where it reads ones and multiplies with ones.
std::vector<float> added_by_adapter(const model::ModelShape& shape, std::int64_t block,
                                    std::int64_t first_row) {
  HeapAllocator memory;
  const auto stream = make_cpu_compute_stream({});
  model::AdapterProducts products(
      shape, [&memory](const BufferSpec& spec) { return memory.acquire(spec); });
  const model::AdapterTarget query = model::adapter_targets(shape, 0)[0];
  const auto ones = [](std::int64_t numel) {
    return std::vector<float>(static_cast<std::size_t>(numel), 1.0f);
  };
  const auto view = [](std::vector<float>& values) {
    return Tensor{values.data(), DType::kF32, std::ssize(values)};
  };
  std::vector<float> x = ones(shape.tokens() * query.inputs), a = ones(3 * query.inputs),
                     b = ones(query.rows * 3), y = ones(shape.tokens() * shape.qkv_width()),
                     workspace = ones(1 << 20);
  model::Affine parameters;
  parameters.adapters = {{0, view(a), view(b)}};
  model::Pass pass;
  pass.training = true;
  pass.first_row = first_row;
  products.begin(shape, block, pass);
  products.forward(*stream, parameters, view(x), view(y),
                   {workspace.data(), DType::kU8, std::ssize(workspace) * 4});
  return y;
}

TEST(AdapterMasks, AreOthersInAnotherBlock) {
  const model::ModelShape shape = with_adapters(tiny_model(false), true);
  EXPECT_NE(added_by_adapter(shape, 0, 0), added_by_adapter(shape, 1, 0));
}

TEST(AdapterMasks, OfARowDontFollowTheMicroBatchThatItIsIn) {
  model::ModelShape shape = with_adapters(tiny_model(false), true);
  shape.sequences = 4;
  const std::vector<float> four = added_by_adapter(shape, 1, 6);
  shape.sequences = 2;
  const std::vector<float> last_two = added_by_adapter(shape, 1, 8);
  EXPECT_EQ(std::vector<float>(four.end() - std::ssize(last_two), four.end()), last_two);
  EXPECT_NE(std::vector<float>(four.begin(), four.begin() + std::ssize(last_two)), last_two);
}

TEST(ModelGradient, OfTheSameWeightsIsAnotherUnderAnotherStepsDropout) {
  engine::TrainingOptions options = tiny_training(tiny_model(false));
  run_ranks({}, [&](sharding::Rank& rank) {
    OneRank run(options, rank);
    rank.guard([&] { EXPECT_EQ(run.loss(), run.loss()); });
  });
  ValuesByName with_dropout, without;
  for (const double dropout : {0.1, 0.0}) {
    options.model.dropout = dropout;
    run_ranks({}, [&](sharding::Rank& rank) {
      OneRank run(options, rank);
      (dropout > 0 ? with_dropout : without) = run.gradients();
    });
  }
  EXPECT_NE(with_dropout, without) << "dropout was meant to be on";
}

}  // namespace
}  // namespace sherd::testing
