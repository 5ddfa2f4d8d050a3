// What processes must have in common before step 0. That they are refused otherwise: tests/engine/processes.
#include "engine/run/agreement.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/isa.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

Recipe small_recipe() {
  constexpr const char* kText = R"(
model: {num_layers: 1, hidden_size: 8, num_attention_heads: 1, vocab_size: 256}
data: {path: nowhere}
training: {seq_length: 8, micro_batch_size: 1, max_steps: 1}
)";
  return resolve_recipe(
             {.path = "small.yaml", .text = kText, .sets = {}, .ranks = {}, .reads_data = false})
      .values;
}

TEST(FactsOfARun, NameTheTableOfMatmulAlgorithms) {
  const test::TempFolder folder;
  const Recipe recipe = small_recipe();
  const std::vector<Fact> without = facts_of_run(recipe, {{0, 1}});
  ::setenv("SHERD_MATMUL_TABLE", folder.write("table.txt", "# a table").c_str(), 1);
  const std::vector<Fact> with = facts_of_run(recipe, {{0, 1}});
  ::unsetenv("SHERD_MATMUL_TABLE");
  ASSERT_EQ(with.size(), without.size());
  std::vector<std::string> differ;
  for (std::size_t i = 0; i < with.size(); ++i) {
    if (with[i].value != without[i].value) differ.push_back(with[i].name);
  }
  EXPECT_EQ(differ, std::vector<std::string>{"the table of matmul algorithms"});
}

// Which of them a process takes may follow from a measurement.
TEST(FactsOfARun, AreEqualOnInstructionSetsThatGiveTheSameBits) {
  const Recipe recipe = small_recipe();
  const auto values = [&](kernels::Isa isa) {
    const kernels::ForcedIsa forced(isa);
    std::string all;
    for (const Fact& fact : facts_of_run(recipe, {{0, 1}})) all += fact.value + "\n";
    return all;
  };
  const std::string of_avx2 = values(kernels::Isa::kAvx2);
  for (const kernels::Isa isa : kernels::available_isas()) {
    EXPECT_EQ(values(isa) == of_avx2, isa != kernels::Isa::kAmx) << kernels::name_of(isa);
  }
}

}  // namespace
}  // namespace sherd::engine
