// Recipes whose layers can't be divided as they say, each refused with the nearest that can.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

std::string refusal(std::vector<std::string> sets, int micro_batches = 4) {
  sets.insert(sets.begin(),
              {"model.num_layers=4", "training.global_batch_size=12",
               fmt::format("training.gradient_accumulation_steps={}", micro_batches)});
  for (std::string& set : sets) {
    if (set.starts_with("pipeline_")) set = "parallelism." + set;
  }
  return error_of(kTinyRecipe, sets);
}

void expect_refused(const std::vector<std::string>& sets, const std::string& says,
                    int micro_batches = 4) {
  const std::string error = refusal(sets, micro_batches);
  EXPECT_NE(error.find(says), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
}

TEST(PipelineRules, MoreChunksThanLayersNameTheMost) {
  expect_refused({"pipeline_parallel_degree=5"},
                 "the model has 4 layers, and every part needs one. The most: "
                 "parallelism.pipeline_parallel_degree: 4.");
  expect_refused({"pipeline_parallel_degree=3", "pipeline_schedule=zb_v"},
                 "The most: parallelism.pipeline_parallel_degree: 2.");
}

TEST(PipelineRules, MicroBatchesThatAScheduleCannotTakeNameTheNearest) {
  expect_refused({"pipeline_parallel_degree=2", "pipeline_schedule=interleaved_1f1b"},
                 "multiples of its 2 ranks, not 3; the nearest: 2 or 4.", 3);
  expect_refused({"pipeline_parallel_degree=2", "pipeline_schedule=dualpipe_v"},
                 "so 4 on 2 ranks, not 3; zb_v takes fewer.", 3);
  expect_refused({"pipeline_parallel_degree=2", "pipeline_chunks_per_rank=2"},
                 "1f1b takes 1 chunk per rank, not 2; interleaved_1f1b takes more.");
}

TEST(PipelineRules, LayersOfChunksAreWholeAndAllOfThem) {
  expect_refused({"pipeline_parallel_degree=2", "pipeline_layers_per_chunk=[1.5, 2.5]"},
                 "layers are whole");
  EXPECT_NE(refusal({"pipeline_parallel_degree=2", "pipeline_layers_per_chunk=[1, 2]"}),
            "no error");
  EXPECT_NE(refusal({"pipeline_parallel_degree=2", "pipeline_layers_per_chunk=[4]"}), "no error");
  EXPECT_EQ(refusal({"pipeline_parallel_degree=2", "pipeline_layers_per_chunk=[1, 3]"}),
            "no error");
}

TEST(PipelineRules, TiedEndsMayBeOnOneRank) {
  EXPECT_EQ(refusal({"pipeline_parallel_degree=2", "pipeline_schedule=zb_v",
                     "model.tie_embeddings=true"}),
            "no error");
}

}  // namespace
}  // namespace sherd::engine
