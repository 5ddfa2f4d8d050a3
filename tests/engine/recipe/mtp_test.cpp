// Multi-token prediction in recipes (docs/mtp.md): what follows from its keys, and what is refused.
#include <gtest/gtest.h>

#include "engine/train/from_recipe.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

using Sets = std::vector<std::string>;

const std::string kLayers = "mtp.num_layers=2";

TEST(RecipePredictions, BecomeLayersOfTheModel) {
  const TrainingOptions options =
      training_options(resolve(kTinyRecipe, {kLayers, "mtp.loss_scaling_factor=0.3"}).values);
  EXPECT_EQ(options.model.mtp_layers, 2);
  EXPECT_EQ(options.model.mtp_loss, 0.3);
  EXPECT_EQ(training_options(resolve(kTinyRecipe, {kLayers}).values).model.mtp_loss, 0.1);
  EXPECT_EQ(training_options(resolve(kTinyRecipe, {}).values).model.mtp_layers, 0);
}

TEST(RecipePredictions, WhatDoesntServeThemSaysSo) {
  const std::pair<std::string, Sets> cases[] = {
      {"parallelism.pipeline_parallel_degree", {"parallelism.pipeline_parallel_degree=2"}},
      {"parallelism.tensor_parallel_degree", {"parallelism.tensor_parallel_degree=2"}},
      {"parallelism.sum_order", {"parallelism.sum_order=canonical"}},
      {"model.positions", {"model.positions=learned"}},
      {"model.dropout", {"model.dropout=0.1"}},
      {"training.z_loss_multiplier", {"training.z_loss_multiplier=0.1"}},
      {"diloco.sync_every", {"diloco.sync_every=5"}}};
  for (const auto& [key, settings] : cases) {
    Sets sets = settings;
    sets.push_back(kLayers);
    EXPECT_NE(error_of(kTinyRecipe, sets)
                  .find("mtp.num_layers is 2, and " + key +
                        " isn't supported with multi-token prediction. Leave out one of the two."),
              std::string::npos)
        << key << ": " << error_of(kTinyRecipe, sets);
  }
}

TEST(RecipePredictions, NeedRowsThatAreLongEnough) {
  const std::string error = error_of(kTinyRecipe, {"mtp.num_layers=3", "training.seq_length=4"});
  EXPECT_NE(
      error.find("mtp.num_layers is 3, and rows of 4 tokens have no token so far ahead. Use at "
                 "most 2."),
      std::string::npos)
      << error;
}

TEST(RecipePredictions, TheirNamesElsewhereLeadToThem) {
  for (const std::string name : {"mtp_num_layers", "num_nextn_predict_layers"}) {
    EXPECT_NE(error_of(kTinyRecipe, {"model." + name + "=1"}).find("mtp.num_layers"),
              std::string::npos)
        << name;
  }
}

}  // namespace
}  // namespace sherd::engine
