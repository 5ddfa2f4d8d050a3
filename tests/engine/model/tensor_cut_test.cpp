#include "engine/model/cut/tensor_cut.h"

#include <gtest/gtest.h>

#include "engine/model/initial_values.h"
#include "engine/model/parameters.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/tensors.h"

namespace sherd::testing {
namespace {

model::ModelShape shape_of(std::int64_t heads, std::int64_t kv_heads, bool gated) {
  model::ModelShape shape = tiny_model(!gated);
  shape.head_size = 2;
  shape.width = 5;
  shape.query_heads = heads;
  shape.kv_heads = kv_heads;
  shape.ffn_width = 8;
  shape.num_layers = 1;
  shape.vocab_size = 7;
  return shape;
}

// "name cut: [rows x columns at (row, column)]...", copies that don't count in brackets.
std::string text_of(const ParameterCut& cut) {
  static constexpr const char* kCuts[] = {"whole", "rows", "columns"};
  std::string text = fmt::format("{} {}:", cut.name, kCuts[static_cast<int>(cut.cut)]);
  for (const auto& [box, counts] : cut.held) {
    const std::string one = fmt::format("{}x{} at ({}, {})", box.num_rows, box.num_columns,
                                        box.first_row, box.first_column);
    text += counts ? " " + one : " [" + one + "]";
  }
  return text + "\n";
}

std::string text_of(const model::ModelShape& shape, int degree, int rank) {
  std::string text;
  for (const auto& unit : model::tensor_cut(shape, degree, rank)) {
    for (const ParameterCut& cut : unit) text += text_of(cut);
  }
  return text;
}

// By hand, from the table in the header: heads of width 2, model width 5.
TEST(TensorCut, OfAGpt2ShapeCutsHeadsWidthAndVocabularyAndCopiesTheRest) {
  EXPECT_EQ(text_of(shape_of(4, 4, false), 2, 1),
            "embedding.token.weight rows: 3x5 at (4, 0)\n"
            "embedding.position.weight whole: [11x5 at (0, 0)]\n"
            "final_norm.weight whole: [5x1 at (0, 0)]\n"
            "final_norm.bias whole: [5x1 at (0, 0)]\n"
            "block.0.norm1.weight whole: [5x1 at (0, 0)]\n"
            "block.0.norm1.bias whole: [5x1 at (0, 0)]\n"
            "block.0.attention.qkv.weight rows: 4x5 at (4, 0) 4x5 at (12, 0) 4x5 at (20, 0)\n"
            "block.0.attention.qkv.bias rows: 4x1 at (4, 0) 4x1 at (12, 0) 4x1 at (20, 0)\n"
            "block.0.attention.output.weight columns: 5x4 at (0, 4)\n"
            "block.0.attention.output.bias whole: [5x1 at (0, 0)]\n"
            "block.0.norm2.weight whole: [5x1 at (0, 0)]\n"
            "block.0.norm2.bias whole: [5x1 at (0, 0)]\n"
            "block.0.mlp.up.weight rows: 4x5 at (4, 0)\n"
            "block.0.mlp.up.bias rows: 4x1 at (4, 0)\n"
            "block.0.mlp.down.weight columns: 5x4 at (0, 4)\n"
            "block.0.mlp.down.bias whole: [5x1 at (0, 0)]\n");
}

TEST(TensorCut, OfFewerKeyValueHeadsThanRanksGivesNeighboursCopiesOfWhichTheFirstCounts) {
  const model::ModelShape shape = shape_of(4, 2, true);
  const auto qkv_of = [&](int rank) { return text_of(model::tensor_cut(shape, 4, rank)[1][1]); };
  EXPECT_EQ(qkv_of(0),
            "block.0.attention.qkv.weight rows: 2x5 at (0, 0) 2x5 at (8, 0) 2x5 at (12, 0)\n");
  EXPECT_EQ(qkv_of(1),
            "block.0.attention.qkv.weight rows: 2x5 at (2, 0) [2x5 at (8, 0)] [2x5 at (12, 0)]\n");
  EXPECT_EQ(qkv_of(2),
            "block.0.attention.qkv.weight rows: 2x5 at (4, 0) 2x5 at (10, 0) 2x5 at (14, 0)\n");
  EXPECT_EQ(qkv_of(3),
            "block.0.attention.qkv.weight rows: 2x5 at (6, 0) [2x5 at (10, 0)] [2x5 at (14, 0)]\n");
}

TEST(TensorCut, OfAGatedMlpCutsGateAndUpApart) {
  const auto block = model::tensor_cut(shape_of(4, 4, true), 4, 2)[1];
  EXPECT_EQ(text_of(block[4]), "block.0.mlp.up.weight rows: 2x5 at (4, 0) 2x5 at (12, 0)\n");
  EXPECT_EQ(text_of(block[5]), "block.0.mlp.down.weight columns: 5x2 at (0, 4)\n");
}

TEST(TensorCut, OfAVocabularyThatRanksCantShareEvenlyGivesTheLastOneFewerTokens) {
  const model::ModelShape shape = shape_of(4, 4, true);
  for (const auto& [rank, box] :
       {std::pair(0, Box{0, 2, 0, 5}), {1, {2, 2, 0, 5}}, {2, {4, 2, 0, 5}}, {3, {6, 1, 0, 5}}}) {
    const auto cuts = model::tensor_cut(shape, 4, rank);
    EXPECT_EQ(cuts.front()[0].boxes(), std::vector{box});
    EXPECT_EQ(cuts.back()[1].boxes(), std::vector{box}) << "the head's";
  }
}

TEST(TensorCut, OfEveryFormHoldsAsManyElementsAsTheRanksParametersHave) {
  for (const bool gated : {false, true}) {
    for (const int kv_heads : {1, 2, 4}) {
      const model::ModelShape whole = shape_of(4, kv_heads, gated);
      for (int rank = 0; rank < 4; ++rank) {
        const auto table = model::parameter_table(model::tensor_part(whole, 4, rank));
        const auto cuts = model::tensor_cut(whole, 4, rank);
        for (std::size_t u = 0; u < table.size(); ++u) {
          for (std::size_t p = 0; p < table[u].parameters.size(); ++p) {
            std::int64_t numel = 0;
            for (const Box& box : cuts[u][p].boxes()) numel += box.numel();
            EXPECT_EQ(numel, table[u].parameters[p].numel()) << cuts[u][p].name;
          }
        }
      }
    }
  }
}

TEST(TensorCut, ARankStartsWithTheBitsOfItsBoxesOfTheWholeParameter) {
  const model::ModelShape whole = shape_of(4, 2, true);
  const auto stream = test::compute_stream();
  const auto units = model::parameter_table(whole);
  const auto filled = [&](const ParameterSpec& parameter, const std::vector<Box>& held,
                          std::int64_t columns, std::int64_t first, std::int64_t count) {
    test::OwnedTensor values(DType::kF32, count);
    model::fill_initial_values(*stream, 11, parameter, held, columns, first, values);
    return values;
  };
  for (int rank = 0; rank < 4; ++rank) {
    const auto cuts = model::tensor_cut(whole, 4, rank);
    for (std::size_t u = 0; u < units.size(); ++u) {
      for (std::size_t p = 0; p < units[u].parameters.size(); ++p) {
        const ParameterSpec& parameter = units[u].parameters[p];
        const ParameterCut& cut = cuts[u][p];
        const auto all =
            filled(parameter, model::whole_box(parameter), cut.columns(), 0, parameter.numel())
                .values();
        test::Values expected;
        for (const Box& box : cut.boxes()) {
          for (std::int64_t row = 0; row < box.num_rows; ++row) {
            const auto at = all.begin() + (box.first_row + row) * cut.columns() + box.first_column;
            expected.insert(expected.end(), at, at + box.num_columns);
          }
        }
        const auto numel = std::ssize(expected);
        EXPECT_EQ(filled(parameter, cut.boxes(), cut.columns(), 0, numel).values(), expected)
            << cut.name;
        // As slices of a flat buffer ask for them.
        for (std::int64_t first = 0; first < numel; first += 3) {
          const std::int64_t count = std::min<std::int64_t>(3, numel - first);
          const auto part = filled(parameter, cut.boxes(), cut.columns(), first, count).values();
          EXPECT_EQ(part, test::Values(expected.begin() + first, expected.begin() + first + count))
              << cut.name << " from " << first;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
