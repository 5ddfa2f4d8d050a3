// Keys of compressed sums over replicas.
#include <gtest/gtest.h>

#include "engine/train/from_recipe.h"
#include "optim/compression.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

using Strings = std::vector<std::string>;

const Strings kLowRank = {"powersgd.rank=4"};
const Strings kSparse = {"dgc.compress_ratio=0.01", "optimizer.type=sgd"};

std::string refused(const Strings& form, Strings sets) {
  sets.insert(sets.begin(), form.begin(), form.end());
  sets.insert(sets.begin(), {"parallelism.data_parallel_replicate_degree=2", "run.device=cpu"});
  return error_of(kTinyRecipe, sets);
}

TEST(RecipeCompression, KeysReachTheTraining) {
  EXPECT_EQ(training_options(resolve(kTinyRecipe).values).compression, nullptr);
  const TrainingOptions low_rank = training_options(
      resolve(kTinyRecipe,
              {"parallelism.data_parallel_replicate_degree=4", "powersgd.rank=3",
               "powersgd.start_step=7", "powersgd.min_compression_rate=1.5", "powersgd.seed=9"})
          .values);
  ASSERT_NE(low_rank.compression, nullptr);
  EXPECT_EQ(low_rank.compression->num_replicas, 4);
  EXPECT_EQ(low_rank.compression->low_rank.rank, 3);
  EXPECT_EQ(low_rank.compression->low_rank.start_step, 7);
  EXPECT_EQ(low_rank.compression->low_rank.min_compression_rate, 1.5);
  EXPECT_EQ(low_rank.compression->low_rank.seed, 9u);
  EXPECT_FALSE(low_rank.compression->sparse.active());
}

const Strings kDecoupled = {"optimizer.dion_decoupled=true", "optimizer.type=dion",
                            "gradient_clipping.max_norm=0"};

TEST(RecipeCompression, DecoupledDionReachesTheTraining) {
  Strings sets = kDecoupled;
  sets.insert(sets.end(), {"optimizer.dion_average_interval=7", "optimizer.momentum=0.8",
                           "parallelism.data_parallel_replicate_degree=4"});
  const TrainingOptions options = training_options(resolve(kTinyRecipe, sets).values);
  ASSERT_NE(options.compression, nullptr);
  EXPECT_EQ(options.compression->num_replicas, 4);
  EXPECT_EQ(options.compression->dion.average_interval, 7);
  EXPECT_EQ(options.compression->dion.optimizer->momentum, 0.8f);
  EXPECT_TRUE(options.compression->dion.optimizer->dion_decoupled);
  EXPECT_TRUE(options.optimizer.dion_decoupled);
  const TrainingOptions other =
      training_options(resolve(kTinyRecipe, {"optimizer.dion_decoupled=true"}).values);
  EXPECT_EQ(other.compression, nullptr) << "adamw has no factors";
}

TEST(RecipeCompression, DecoupledDionCantClipByTheNorm) {
  Strings clips = kDecoupled;
  clips.back() = "gradient_clipping.max_norm=1";
  EXPECT_NE(refused(clips, {}).find("so replicas never form the sum of their gradients, whose norm "
                                    "gradient_clipping.max_norm: 1 would clip. Set "
                                    "gradient_clipping.max_norm: 0."),
            std::string::npos)
      << refused(clips, {});
  EXPECT_NE(refused(kDecoupled, kLowRank).find("both change how replicas add gradients"),
            std::string::npos);
}

TEST(RecipeCompression, MomentumIsTheCompressionsIfItIsCorrected) {
  const auto options = [](Strings more) {
    more.insert(more.end(), kSparse.begin(), kSparse.end());
    more.emplace_back("optimizer.momentum=0.8");
    return training_options(resolve(kTinyRecipe, more).values);
  };
  const TrainingOptions corrected = options({"dgc.sample_ratio=0.5", "dgc.clip=value",
                                             "dgc.clip_threshold=3", "dgc.momentum_masking=false"});
  EXPECT_EQ(corrected.optimizer.momentum, 0.0f);
  EXPECT_EQ(corrected.compression->sparse.momentum, 0.8);
  EXPECT_EQ(corrected.compression->sparse.sample_ratio, 0.5);
  EXPECT_EQ(corrected.compression->sparse.clip, optim::LocalClip::kValue);
  EXPECT_EQ(corrected.compression->sparse.clip_threshold, 3.0);
  EXPECT_FALSE(corrected.compression->sparse.momentum_masking);
  const TrainingOptions plain = options({"dgc.momentum_correction=false"});
  EXPECT_EQ(plain.optimizer.momentum, 0.8f);
  EXPECT_EQ(plain.compression->sparse.momentum, 0.0);
}

TEST(RecipeCompression, RefusesByNameWhatItIsntFor) {
  for (const Strings& form : {kLowRank, kSparse, kDecoupled}) {
    const std::string key = form[0].substr(0, form[0].find('='));
    for (const auto& [other, value] : {std::pair("diloco.sync_every", "4"),
                                       {"mixed_precision.reduce_dtype", "int8_block64"},
                                       {"parallelism.sum_order", "canonical"},
                                       {"moe.num_experts", "4"},
                                       {"zero_optimization.shard_optimizer_over_replicas", "true"},
                                       {"zero_optimization.offload_optimizer", "nvme"},
                                       {"bad_steps.max_loss", "100"},
                                       {"bad_steps.skip_non_finite", "true"}}) {
      const std::string error =
          refused(form, {fmt::format("{}={}", other, value), "zero_optimization.stage=2"});
      EXPECT_NE(error.find(fmt::format("so sums of gradients over replicas are compressed, and {} "
                                       "isn't supported with that. Leave out one of the two.",
                                       other)),
                std::string::npos)
          << key << ": " << error;
    }
    EXPECT_EQ(refused(form, {}), "no error");
    if (form == kDecoupled) continue;  // dion is for CPUs
    EXPECT_EQ(refused(form, {"run.device=cuda"}),
              fmt::format("--set {}: {} isn't 0, but compressed sums over replicas are for CPUs "
                          "only; use 0, or set run.device: cpu.",
                          form[0], key));
  }
}

TEST(RecipeCompression, SparseSumsOfTensorRanksCantClipByTheNorm) {
  EXPECT_EQ(refused(kSparse, {"dgc.clip=value", "parallelism.tensor_parallel_degree=2"}),
            "no error");
  EXPECT_NE(refused(kSparse, {"dgc.clip=norm", "parallelism.tensor_parallel_degree=2"})
                .find("whose ranks have parts of the parameters that it is the norm of. Use clip: "
                      "value or none."),
            std::string::npos);
}

TEST(RecipeCompression, IsOneOfThemAndSparseSumsAreForSgd) {
  Strings both = kLowRank;
  both.insert(both.end(), kSparse.begin(), kSparse.end());
  EXPECT_NE(refused(both, {}).find("powersgd.rank and dgc.compress_ratio compress the same sums. "
                                   "Leave out one of the two."),
            std::string::npos);
  EXPECT_NE(refused({"dgc.compress_ratio=0.01"}, {"optimizer.type=adamw"})
                .find("deep gradient compression is for SGD"),
            std::string::npos);
}

TEST(RecipeCompression, ATiedMatrixOfAPipelineIsRefused) {
  const std::string error =
      refused(kLowRank, {"model.tie_embeddings=true", "parallelism.pipeline_parallel_degree=2"});
  EXPECT_NE(error.find("a tied matrix at both ends of a pipeline isn't supported"),
            std::string::npos)
      << error;
}

TEST(RecipeCompression, NamesOfOtherProgramsAreExplained) {
  EXPECT_NE(error_of_set("powersgd.matrix_approximation_rank=4").find("powersgd.rank"),
            std::string::npos);
  EXPECT_NE(error_of_set("powersgd.start_powerSGD_iter=4").find("powersgd.start_step"),
            std::string::npos);
}

}  // namespace
}  // namespace sherd::engine
