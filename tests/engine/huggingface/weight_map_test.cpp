// Whose rows are whose.
#include "engine/huggingface/weight_map.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "tests/support/values/error_text.h"

namespace sherd::huggingface {
namespace {

// H 4, G 2 (or 4), K 8, D 12, F 10.
ModelWeights tiny(std::int64_t kv_heads, std::int64_t rotary_width, bool gated, bool biases,
                  const std::string& qk_norm = "") {
  ModelWeights model;
  model.query_heads = 4;
  model.kv_heads = kv_heads;
  model.head_width = 8;
  model.rotary_width = rotary_width;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    model.parameters.push_back({name + ".weight", shape});
    if (biases && !name.starts_with("embedding") && name != "head") {
      model.parameters.push_back({name + ".bias", {shape[0]}});
    }
  };
  add("embedding.token", {30, 12});
  for (int i = 0; i < 2; ++i) {
    const std::string block = "block." + std::to_string(i);
    add(block + ".norm1", {12});
    add(block + ".attention.qkv", {(4 + 2 * kv_heads) * 8, 12});
    if (!qk_norm.empty()) {
      const std::int64_t queries = qk_norm == "head" ? 1 : 4,
                         keys = qk_norm == "head" ? 1 : kv_heads;
      model.parameters.push_back({block + ".attention.query_norm.weight", {queries * 8}});
      model.parameters.push_back({block + ".attention.key_norm.weight", {keys * 8}});
    }
    add(block + ".attention.output", {12, 32});
    add(block + ".norm2", {12});
    add(block + ".mlp.up", {gated ? 20 : 10, 12});
    add(block + ".mlp.down", {12, 10});
  }
  add("final_norm", {12});
  add("head", {30, 12});
  return model;
}

// The weights of a block with one norm.
ModelWeights one_norm(ModelWeights model) {
  std::erase_if(model.parameters, [](const NamedShape& one) {
    return one.name.find(".norm2.") != std::string::npos;
  });
  return model;
}

const NamedShape& theirs(const WeightMap& map, const std::string& name) {
  for (const NamedShape& shape : map.theirs) {
    if (shape.name == name) return shape;
  }
  ADD_FAILURE() << "no " << name;
  return map.theirs[0];
}

// The place of element `element` of our parameter: "name[element]".
std::string place_of(const WeightMap& map, const std::string& ours, std::int64_t element) {
  std::string place;
  for (const Link& link : map.links) {
    if (map.ours[static_cast<std::size_t>(link.ours)].name != ours) continue;
    for_each_run(link.box, element, element + 1, 1, [&](const huggingface::Run& run) {
      place += map.theirs[static_cast<std::size_t>(link.theirs)].name + "[" +
               std::to_string(run.from) + "]";
    });
  }
  return place;
}

TEST(WeightMap, CoversEveryElementOfBothSidesOnceInEveryFamily) {
  struct Case {
    std::string family;
    ModelWeights model;
  };
  const std::vector<Case> cases = {
      {"llama", tiny(2, 8, true, false)},
      {"qwen2", tiny(2, 8, true, true)},
      {"qwen3", tiny(2, 8, true, false, "head")},
      {"phi3", tiny(2, 6, true, false)},
      {"gpt2", tiny(4, 8, false, true)},
      {"gpt_neox", tiny(4, 2, false, true)},
      {"stablelm", tiny(2, 2, true, true)},
      {"starcoder2", tiny(2, 8, false, true)},
      {"glm4", tiny(2, 4, true, true)},
      {"cohere", one_norm(tiny(2, 8, true, false))},
      {"stablelm", one_norm(tiny(2, 2, true, false, "per_head"))},
      {"cohere", one_norm(tiny(2, 8, true, false, "per_head"))},
  };
  for (const Case& c : cases) {
    const WeightMap map = weight_map(*find_family(c.family), c.model, true);
    std::set<std::pair<int, std::int64_t>> of_ours, of_theirs;
    std::int64_t num_ours = 0, num_theirs = 0;
    for (const NamedShape& shape : map.ours) num_ours += shape.numel();
    for (const NamedShape& shape : map.theirs) num_theirs += shape.numel();
    for (const Link& link : map.links) {
      for_each_run(link.box, 0, 1 << 20, 1, [&](const huggingface::Run& run) {
        EXPECT_TRUE(of_ours.emplace(link.ours, run.to).second);
        EXPECT_TRUE(of_theirs.emplace(link.theirs, run.from).second);
        EXPECT_LT(run.to, map.ours[static_cast<std::size_t>(link.ours)].numel());
        EXPECT_LT(run.from, map.theirs[static_cast<std::size_t>(link.theirs)].numel());
      });
    }
    EXPECT_EQ(std::ssize(of_ours), num_ours) << c.family;
    EXPECT_EQ(std::ssize(of_theirs), num_theirs) << c.family;
    std::set<std::string> names;
    for (const NamedShape& shape : map.theirs) EXPECT_TRUE(names.insert(shape.name).second);
  }
}

TEST(WeightMap, StacksQueryKeyAndValueAndGateAndUp) {
  const WeightMap map = weight_map(*find_family("llama"), tiny(2, 8, true, false), true);
  const std::string qkv = "block.1.attention.qkv.weight", at = "model.layers.1.self_attn.";
  EXPECT_EQ(place_of(map, qkv, 0), at + "q_proj.weight[0]");
  EXPECT_EQ(place_of(map, qkv, 32 * 12 + 5), at + "k_proj.weight[5]");
  EXPECT_EQ(place_of(map, qkv, 63 * 12 + 11), at + "v_proj.weight[191]");
  EXPECT_EQ(place_of(map, "block.0.mlp.up.weight", 10 * 12),
            "model.layers.0.mlp.up_proj.weight[0]");
  EXPECT_EQ(theirs(map, at + "k_proj.weight").shape, (std::vector<std::int64_t>{16, 12}));
  EXPECT_EQ(place_of(map, "head.weight", 7), "lm_head.weight[7]");
}

TEST(WeightMap, TurnsTheMatricesOfGpt2Over) {
  const WeightMap map = weight_map(*find_family("gpt2"), tiny(4, 8, false, true), true);
  const std::string name = "transformer.h.0.attn.c_attn.weight";
  EXPECT_EQ(theirs(map, name).shape, (std::vector<std::int64_t>{12, 96}));
  // Row 70 (output), column 5 (input).
  EXPECT_EQ(place_of(map, "block.0.attention.qkv.weight", 70 * 12 + 5),
            name + "[" + std::to_string(5 * 96 + 70) + "]");
  EXPECT_EQ(place_of(map, "block.0.attention.qkv.bias", 70),
            "transformer.h.0.attn.c_attn.bias[70]");
  const WeightMap bare = weight_map(*find_family("gpt2"), tiny(4, 8, false, true), false);
  EXPECT_EQ(place_of(bare, "final_norm.bias", 3), "ln_f.bias[3]");
}

// Theirs: head, kind, row; and the first two rows of each head are rotated together.
TEST(WeightMap, TakesHeadsApartAndBringsTheRowsThatAreTurnedTogether) {
  const WeightMap map = weight_map(*find_family("gpt_neox"), tiny(4, 2, false, true), true);
  const std::string bias = "gpt_neox.layers.0.attention.query_key_value.bias";
  const auto place = [&](std::int64_t row) {
    return place_of(map, "block.0.attention.qkv.bias", row);
  };
  const auto row = [&](int head, int kind, int r) {
    return bias + "[" + std::to_string(head * 24 + kind * 8 + r) + "]";
  };
  // r = 2, K = 8: ours [0, 1) [1, 4) [4, 5) [5, 8) are theirs [0, 1) [2, 5) [1, 2) [5, 8).
  const int order[8] = {0, 2, 3, 4, 1, 5, 6, 7};
  for (int head = 0; head < 4; ++head) {
    for (int r = 0; r < 8; ++r) {
      EXPECT_EQ(place(head * 8 + r), row(head, 0, order[r]));
      EXPECT_EQ(place(32 + head * 8 + r), row(head, 1, order[r]));
      EXPECT_EQ(place(64 + head * 8 + r), row(head, 2, r));
    }
  }
}

TEST(WeightMap, BringsInterleavedPairsApart) {
  const WeightMap half = weight_map(*find_family("glm4"), tiny(2, 4, true, true), true);
  const WeightMap whole =
      weight_map(*find_family("cohere"), one_norm(tiny(2, 8, true, false)), true);
  // Theirs turn (0, 1), (2, 3), ...; ours (0, 4), (1, 5), ...
  const int half_order[8] = {0, 2, 4, 5, 1, 3, 6, 7};
  const int whole_order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  for (int head = 0; head < 4; ++head) {
    for (int r = 0; r < 8; ++r) {
      EXPECT_EQ(place_of(half, "block.0.attention.qkv.bias", head * 8 + r),
                fmt::format("model.layers.0.self_attn.q_proj.bias[{}]", head * 8 + half_order[r]));
      EXPECT_EQ(place_of(whole, "block.0.attention.qkv.weight", (head * 8 + r) * 12 + 3),
                fmt::format("model.layers.0.self_attn.q_proj.weight[{}]",
                            (head * 8 + whole_order[r]) * 12 + 3));
    }
  }
}

// In tensors of their own, or in a matrix; in the order of the rows that they multiply.
TEST(WeightMap, KeepsTheNormWeightsOfEachHeadApart) {
  const WeightMap apart =
      weight_map(*find_family("stablelm"), one_norm(tiny(2, 2, true, false, "per_head")), true);
  const WeightMap matrix =
      weight_map(*find_family("cohere"), one_norm(tiny(2, 8, true, false, "per_head")), true);
  const std::string at = "model.layers.1.self_attn.";
  EXPECT_EQ(theirs(apart, at + "k_layernorm.norms.1.weight").shape, (std::vector<std::int64_t>{8}));
  EXPECT_EQ(theirs(matrix, at + "q_norm.weight").shape, (std::vector<std::int64_t>{4, 8}));
  EXPECT_EQ(theirs(matrix, at + "k_norm.weight").shape, (std::vector<std::int64_t>{2, 8}));
  const int quarter_order[8] = {0, 2, 3, 4, 1, 5, 6, 7};
  const int interleaved_order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  for (const bool of_keys : {false, true}) {
    const std::string ours =
        fmt::format("block.1.attention.{}_norm.weight", of_keys ? "key" : "query");
    const char letter = of_keys ? 'k' : 'q';
    for (int head = 0; head < (of_keys ? 2 : 4); ++head) {
      for (int r = 0; r < 8; ++r) {
        EXPECT_EQ(
            place_of(apart, ours, head * 8 + r),
            fmt::format("{}{}_layernorm.norms.{}.weight[{}]", at, letter, head, quarter_order[r]));
        EXPECT_EQ(place_of(matrix, ours, head * 8 + r),
                  fmt::format("{}{}_norm.weight[{}]", at, letter, head * 8 + interleaved_order[r]));
      }
    }
  }
}

TEST(WeightMap, NamesWhatAFamilyHasNoNameFor) {
  ModelWeights model = tiny(2, 8, true, false);
  model.parameters.push_back({"block.0.gadget.weight", {3}});
  EXPECT_EQ(test::error_text<UsageError>([&] { weight_map(*find_family("llama"), model, true); }),
            "block.0.gadget.weight: models of type llama have no such tensor");
}

}  // namespace
}  // namespace sherd::huggingface
