// Rates of muP and LoRA+. The expected factors are the rules of Megatron-LM (get_mup_config_overrides) at
// m = hidden_size / mup_base_hidden_size: Adam divides rate and eps of hidden matrices by m, SGD multiplies the rate of
// everything else by m, others divide the rate of hidden matrices, and Muon's matrices are left out.
#include "engine/train/parameter_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/model/parameters.h"
#include "engine/train/from_recipe.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

using Strings = std::vector<std::string>;

TrainingOptions options_of(Strings sets) {
  return training_options(resolve(kTinyRecipe, sets).values);
}

struct Rates {
  float lr_factor = 0, eps = 0;
};

Rates rates_of(const TrainingOptions& options, const std::string& name) {
  for (const UnitSpec& unit : model::parameter_table(options.model)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.name != name) continue;
      const optim::ParameterGroup group =
          options.optimizer.rates_of(options.optimizer.group_of(parameter));
      return {group.lr_factor, group.eps};
    }
  }
  ADD_FAILURE() << name;
  return {};
}

void expect_rates(const Strings& sets, const std::string& name, double lr_factor, double eps) {
  const Rates rates = rates_of(options_of(sets), name);
  EXPECT_EQ(rates.lr_factor, static_cast<float>(lr_factor)) << name << " " << sets.back();
  EXPECT_FLOAT_EQ(rates.eps, static_cast<float>(eps)) << name << " " << sets.back();
}

constexpr const char *kHidden = "block.1.mlp.up.weight",
                     *kToResidual = "block.0.attention.output.weight",
                     *kNorm = "block.1.norm1.weight", *kEmbedding = "embedding.token.weight",
                     *kHead = "head.weight";

// m = 4.
TEST(Mup, HasMegatronsRatesForEachOptimizer) {
  const std::string base = "model.mup_base_hidden_size=16";
  for (const char* type : {"adamw", "adam"}) {
    const Strings sets = {base, std::string("optimizer.type=") + type};
    for (const char* name : {kHidden, kToResidual}) expect_rates(sets, name, 0.25, 0.25e-8);
    for (const char* name : {kNorm, kEmbedding, kHead}) expect_rates(sets, name, 1, 1e-8);
  }
  const Strings sgd = {base, "optimizer.type=sgd"};
  for (const char* name : {kHidden, kToResidual}) {
    EXPECT_EQ(rates_of(options_of(sgd), name).lr_factor, 1.0f);
  }
  for (const char* name : {kNorm, kEmbedding, kHead}) {
    EXPECT_EQ(rates_of(options_of(sgd), name).lr_factor, 4.0f);
  }
  const Strings lion = {base, "optimizer.type=lion"};
  EXPECT_EQ(rates_of(options_of(lion), kHidden).lr_factor, 0.25f);
  EXPECT_EQ(rates_of(options_of(lion), kHead).lr_factor, 1.0f);
  const Strings muon = {base, "optimizer.type=muon"};
  for (const char* name : {kHidden, kToResidual, kNorm, kEmbedding}) {
    expect_rates(muon, name, 1, 1e-8);
  }
  const Strings left = {base, "optimizer.type=muon",
                        "optimizer.groups=[{parameters: [\"*.mlp.up.weight\"], optimizer: adamw}]"};
  expect_rates(left, kHidden, 0.25, 0.25e-8);
  expect_rates(left, kToResidual, 1, 1e-8);
}

TEST(Mup, ScalesInitialValuesAndLogits) {
  const TrainingOptions plain = options_of({}), mup = options_of({"model.mup_base_hidden_size=16"});
  EXPECT_EQ(mup.model.logits_scale, 0.25);
  EXPECT_EQ(mup.model.attention_scale, 0.0) << "1 / sqrt(head_width), as at the base";
  const auto before = model::parameter_table(plain.model),
             after = model::parameter_table(mup.model);
  for (std::size_t u = 0; u < before.size(); ++u) {
    for (std::size_t p = 0; p < before[u].parameters.size(); ++p) {
      const ParameterSpec& parameter = before[u].parameters[p];
      const bool hidden = parameter.name.starts_with("block.") && parameter.shape.size() == 2;
      EXPECT_FLOAT_EQ(after[u].parameters[p].initial.stddev,
                      parameter.initial.stddev / (hidden ? 2.0f : 1.0f))
          << parameter.name;
    }
  }
}

// Factors are multiplied, also where a group has only some of the matrices.
TEST(Mup, MultipliesTheGroupsOfTheRecipe) {
  const Strings sets = {
      "model.mup_base_hidden_size=16",
      "optimizer.groups=[{parameters: [\"block.1.*\", \"head.*\"], lr_factor: 0.5, eps: 1e-6}]"};
  expect_rates(sets, kHidden, 0.125, 0.25e-6);
  expect_rates(sets, kNorm, 0.5, 1e-6);
  expect_rates(sets, kHead, 0.5, 1e-6);
  expect_rates(sets, kToResidual, 0.25, 0.25e-8);
  expect_rates(sets, kEmbedding, 1, 1e-8);
}

TEST(Mup, OfTheBaseItselfIsTheModelAsItIs) {
  const TrainingOptions plain = options_of({}), mup = options_of({"model.mup_base_hidden_size=64"});
  EXPECT_TRUE(mup.optimizer.groups.empty());
  EXPECT_EQ(mup.model.block_init_std, plain.model.block_init_std);
  EXPECT_EQ(mup.model.logits_scale, 1.0);
}

TEST(Mup, RefusesWhatItCantBeCombinedWithInOneLine) {
  const std::string base = "model.mup_base_hidden_size=16";
  const auto refused = [&](Strings more) {
    more.push_back(base);
    const std::string error = error_of(kTinyRecipe, more);
    EXPECT_EQ(std::ranges::count(error, '\n'), 0) << error;
    return error;
  };
  EXPECT_NE(refused({"model.logits_scale=2"}).find("muP sets it to"), std::string::npos);
  EXPECT_NE(refused({"optimizer.type=lamb"}).find("has no rules for lamb"), std::string::npos);
  EXPECT_NE(refused({"adapter.type=lora", "checkpoint.init_from=x"}).find("not for an adapter"),
            std::string::npos);
}

TEST(LoraPlus, TrainsBFasterThanA) {
  const Strings sets = {"adapter.type=lora", "checkpoint.init_from=x",
                        "adapter.targets=[attention.query]", "adapter.lora_plus_ratio=16",
                        "adapter.modules_to_save=[head]"};
  const TrainingOptions options = options_of(sets);
  EXPECT_EQ(rates_of(options, "block.1.attention.query.lora_b").lr_factor, 16.0f);
  EXPECT_EQ(rates_of(options, "block.1.attention.query.lora_a").lr_factor, 1.0f);
  EXPECT_EQ(rates_of(options, "head.weight").lr_factor, 1.0f);
  Strings grouped = sets;
  grouped.emplace_back("optimizer.groups=[{parameters: [\"block.0.*\"], lr_factor: 0.5}]");
  const TrainingOptions both = options_of(grouped);
  EXPECT_EQ(rates_of(both, "block.0.attention.query.lora_b").lr_factor, 8.0f);
  EXPECT_EQ(rates_of(both, "block.0.attention.query.lora_a").lr_factor, 0.5f);
  EXPECT_EQ(rates_of(both, "block.1.attention.query.lora_b").lr_factor, 16.0f);
}

}  // namespace
}  // namespace sherd::engine
