// `sherd plan --parameters`, against rows worked out by hand from Megatron's cuts (shared key/value heads by the
// rule of engine/model/cut/tensor_cut.h).
#include "engine/plan/parameter_table.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

// For each parameter, the rest of its row with single spaces.
std::map<std::string, std::string> rows_of(const std::vector<std::string>& sets) {
  std::istringstream lines(parameter_rows(resolve(kTinyRecipe, sets).values));
  std::map<std::string, std::string> rows;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, rest;
    words >> name;
    for (std::string word; words >> word;) rest += (rest.empty() ? "" : " ") + word;
    rows[name] = rest;
  }
  return rows;
}

const std::vector<std::string> kModel = {"model.hidden_size=24",
                                         "model.num_attention_heads=4",
                                         "model.num_kv_heads=2",
                                         "model.ffn_hidden_size=36",
                                         "model.vocab_size=259",
                                         "model.norm=rmsnorm",
                                         "model.activation=swiglu",
                                         "model.tie_embeddings=false",
                                         "zero_optimization.stage=3",
                                         "training.global_batch_size=8",
                                         "parallelism.data_parallel_shard_degree=2"};

std::vector<std::string> with(std::vector<std::string> more) {
  more.insert(more.begin(), kModel.begin(), kModel.end());
  return more;
}

TEST(ParameterTable, HasACutASumAndAnOwnerForEachParameter) {
  const auto rows = rows_of(with({"parallelism.tensor_parallel_degree=2"}));
  EXPECT_EQ(rows.at("embedding.token.weight"), "259 x 24 rows shard shard each its part");
  EXPECT_EQ(rows.at("block.*.norm1.weight"), "24 none shard shard tensor rank 0");
  EXPECT_EQ(rows.at("block.*.attention.qkv.weight"), "48 x 24 rows shard shard each its part");
  EXPECT_EQ(rows.at("block.*.attention.output.weight"),
            "24 x 24 columns shard shard each its part");
  EXPECT_EQ(rows.at("block.*.mlp.up.weight"), "72 x 24 rows shard shard each its part");
  EXPECT_EQ(rows.at("block.*.mlp.down.weight"), "24 x 36 columns shard shard each its part");
  EXPECT_EQ(rows.at("final_norm.weight"), "24 none shard shard tensor rank 0");
  EXPECT_EQ(rows.at("head.weight"), "259 x 24 rows shard shard each its part");
}

// Korthikanti et al.: a norm's gradient is of a rank's tokens; Megatron adds those of the norms of queries and keys, of a
// rank's heads, with and without sequence parallelism. Matrices see all tokens.
TEST(ParameterTable, NormsGradientsAreSummedOverTensorRanksThatShareTokens) {
  const std::vector<std::string> cut = {"parallelism.tensor_parallel_degree=2",
                                        "model.qk_norm=head"};
  EXPECT_EQ(rows_of(with(cut)).at("block.*.attention.key_norm.weight"),
            "6 none shard, tensor shard tensor rank 0");
  EXPECT_EQ(rows_of(with(cut)).at("block.*.norm1.weight"), "24 none shard shard tensor rank 0");
  std::vector<std::string> shared = cut;
  shared.push_back("parallelism.sequence_parallel=true");
  const auto rows = rows_of(with(shared));
  for (const char* norm : {"block.*.norm1.weight", "block.*.norm2.weight", "final_norm.weight"}) {
    EXPECT_EQ(rows.at(norm), "24 none shard, tensor shard tensor rank 0") << norm;
  }
  EXPECT_EQ(rows.at("block.*.attention.query_norm.weight"),
            "6 none shard, tensor shard tensor rank 0");
  EXPECT_EQ(rows.at("block.*.attention.output.weight"),
            "24 x 24 columns shard shard each its part");
}

TEST(ParameterTable, CopiesOfKeyValueHeadsCountOnce) {
  const auto rows = rows_of(with({"parallelism.tensor_parallel_degree=4"}));
  EXPECT_EQ(rows.at("block.*.attention.qkv.weight"),
            "48 x 24 rows shard shard the first holder of each box");
}

TEST(ParameterTable, WithoutTensorRanksNothingIsCut) {
  const auto rows =
      rows_of(with({"parallelism.data_parallel_replicate_degree=2", "zero_optimization.stage=0"}));
  EXPECT_EQ(rows.at("block.*.attention.qkv.weight"), "48 x 24 none replicate, shard - -");
}

TEST(ParameterTable, HasTheGroupOfEachParameterAndBlocksThatDifferApart) {
  const std::vector<std::string> sets =
      with({"optimizer.groups=[{parameters: [\"embedding.*\", block.1.mlp.down.weight], lr_factor: "
            "0.5}, "
            "{parameters: [\"*norm1.*\"], frozen: true}]",
            "model.num_layers=2"});
  const auto rows = rows_of(sets);
  EXPECT_EQ(rows.at("embedding.token.weight"), "259 x 24 1 none shard shard -");
  EXPECT_EQ(rows.at("block.0.mlp.down.weight"), "24 x 36 - none shard shard -");
  EXPECT_EQ(rows.at("block.1.mlp.down.weight"), "24 x 36 1 none shard shard -");
  EXPECT_EQ(rows.at("block.*.mlp.up.weight"), "72 x 24 - none shard shard -");
  EXPECT_EQ(rows.at("block.*.norm1.weight"), "24 2 none frozen");
  const std::string text = parameter_rows(resolve(kTinyRecipe, sets).values);
  EXPECT_NE(text.find("group 1 (embedding.*, block.1.mlp.down.weight): 2 tensors, 7080 "
                      "parameters, 0.5 x lr\n"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace sherd::engine
