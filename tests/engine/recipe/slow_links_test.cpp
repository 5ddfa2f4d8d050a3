// Types in blocks (docs/slow_links.md): what follows from them, and what is refused, in one line each.
#include <gtest/gtest.h>

#include "engine/train/from_recipe.h"
#include "kernels/block_codec.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

using Sets = std::vector<std::string>;
using kernels::BlockFormat;

const std::string kGather = "mixed_precision.gather_dtype=int8_block64";
const std::string kReduce = "mixed_precision.reduce_dtype=int4_block64";

std::string error_with(const Sets& sets) {
  return error_of(kTinyRecipe, sets);
}

TEST(RecipeBlocks, GradientsAreFormedAndAccumulatedInF32WhateverTheParametersAre) {
  for (const std::string param : {"f32", "bf16", "f16"}) {
    const Recipe recipe =
        resolve(kTinyRecipe, {"mixed_precision.param_dtype=" + param, kGather, kReduce}).values;
    EXPECT_EQ(recipe.mixed_precision.grad_accum_dtype, FloatType::kF32) << param;
    const sharding::Precision precision = training_options(recipe).precision;
    EXPECT_EQ(precision.reduce, DType::kF32);
    EXPECT_EQ(precision.accumulate, DType::kF32);
    EXPECT_EQ(precision.gather_blocks, BlockFormat::kInt8);
    EXPECT_EQ(precision.reduce_blocks, BlockFormat::kInt4);
  }
  const sharding::Precision usual = training_options(resolve(kTinyRecipe, {}).values).precision;
  EXPECT_EQ(usual.gather_blocks, BlockFormat::kF32);
  EXPECT_EQ(usual.reduce_blocks, BlockFormat::kF32);
}

TEST(RecipeBlocks, TheirGradientsAreAccumulatedInF32AtTheBoundary) {
  EXPECT_EQ(error_with({kReduce, "mixed_precision.grad_accum_dtype=bf16"}),
            "--set mixed_precision.grad_accum_dtype=bf16: mixed_precision.grad_accum_dtype differs "
            "from reduce_dtype, but with grad_sync: boundary it is the accumulated gradient that "
            "is reduced. Use grad_accum_dtype: f32, from which blocks are made, or use grad_sync: "
            "every_micro_step.");
  EXPECT_EQ(error_with({kReduce, "mixed_precision.grad_accum_dtype=bf16",
                        "zero_optimization.grad_sync=every_micro_step"}),
            "no error");
}

TEST(RecipeBlocks, WhatDoesntServeThemSaysSo) {
  const std::string where = "--set " + kGather + ": mixed_precision.gather_dtype sends ";
  EXPECT_EQ(
      error_with({kGather, "zero_optimization.offload_optimizer=nvme"}),
      where +
          "parameters in blocks, which aren't made from offloaded ones yet. Use gather_dtype: "
          "param_dtype, or zero_optimization.offload_optimizer: none.");
  EXPECT_EQ(error_with({kReduce, "zero_optimization.offload_optimizer=nvme"}), "no error");
  EXPECT_NE(error_with({kGather, "adapter.type=lora", "checkpoint.init_from=base"})
                .find(where + "trained parameters in blocks, and an adapter's base is frozen. "),
            std::string::npos);
  EXPECT_NE(error_with({kReduce, "parallelism.sum_order=canonical"})
                .find("parallelism.sum_order is canonical, which doesn't serve gradients in "
                      "blocks: use mixed_precision.reduce_dtype: f32."),
            std::string::npos);
}

TEST(RecipeBlocks, OfReplicasAreThoseOfGradientsUnlessTheRecipeSaysOtherwise) {
  const auto blocks = [](const Sets& sets) {
    return training_options(resolve(kTinyRecipe, sets).values).precision.replica_blocks;
  };
  const std::string key = "mixed_precision.replica_reduce_dtype=";
  EXPECT_EQ(blocks({}), BlockFormat::kF32);
  EXPECT_EQ(blocks({kReduce}), BlockFormat::kInt4);
  EXPECT_EQ(blocks({kReduce, key + "grad_accum_dtype"}), BlockFormat::kF32);
  EXPECT_EQ(blocks({kReduce, key + "int8_block64"}), BlockFormat::kInt8);
  EXPECT_EQ(blocks({key + "int8_block64"}), BlockFormat::kInt8);
  EXPECT_NE(error_with({key + "int8_block64", "parallelism.sum_order=canonical"})
                .find("sums of replicas in blocks: use mixed_precision.replica_reduce_dtype: "
                      "grad_accum_dtype."),
            std::string::npos);
}

TEST(RecipeBlocks, GpusCodeThemToo) {
  for (const std::string& key :
       {kGather, kReduce, std::string("mixed_precision.replica_reduce_dtype=int8_block64")}) {
    EXPECT_EQ(error_with({key, "run.device=cuda"}), "no error");
  }
}

TEST(RecipeBlocks, AreNotTypesOfParametersOrMoments) {
  for (const std::string key : {"param_dtype", "grad_accum_dtype", "optimizer_state_dtype"}) {
    EXPECT_NE(error_with({"mixed_precision." + key + "=int8_block64"}).find("f32, bf16"),
              std::string::npos)
        << key;
  }
  EXPECT_NE(error_with({"mixed_precision.gather_dtype=bf16"}).find("param_dtype, int8_block64"),
            std::string::npos);
}

TEST(RecipeBlocks, OfGradientsAreRefusedWhereGroupsOfTheBatchAreSummedIn16Bits) {
  const Sets groups = {kReduce, "mixed_precision.param_dtype=bf16", "parallelism.batch_groups=2",
                       "training.micro_batch_size=4"};
  EXPECT_EQ(error_with(groups), "no error");
  Sets narrow = groups;
  narrow.emplace_back("mixed_precision.grad_accum_dtype=bf16");
  const std::string error = error_with(narrow);
  EXPECT_NE(error.find("mixed_precision.grad_accum_dtype isn't f32"), std::string::npos) << error;
}

}  // namespace
}  // namespace sherd::engine
