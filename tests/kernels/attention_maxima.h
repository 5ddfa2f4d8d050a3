/// Each head's largest attention score, of the cases in tests/reference/stability.json: on a CPU
/// (attention_maxima_test.cpp) and on a GPU (cuda_attention_maxima_test.cpp).
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/attention.h"
#include "tests/support/devices/place.h"
#include "tests/where.h"

namespace sherd::kernels {

struct MaximaCase {
  AttentionShape shape;
  std::vector<std::int64_t> lengths;  ///< of the documents of every row
  test::Values largest;

  /// All inputs are multiples of 1/8, and scores have few bits: they are exact in every type.
  test::OwnedTensor qkv(DType dtype) const {
    test::Values values;
    for (std::int64_t i = 0; i < shape.tokens() * shape.packed_width(); ++i) {
      values.push_back(static_cast<double>(i * 53 % 97 - 48) / 8.0);
    }
    return {dtype, values};
  }
};

inline std::vector<MaximaCase> maxima_cases() {
  const std::string name = "tests/reference/stability.json";
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/" + name);
  if (!file) file.open(name);  // on a GPU's machine, which runs what was built elsewhere
  std::vector<MaximaCase> cases;
  const nlohmann::json reference = nlohmann::json::parse(file);
  for (const auto& each : reference.at("attention")) {
    MaximaCase& made = cases.emplace_back();
    made.shape = {.sequences = each["sequences"],
                  .positions = each["positions"],
                  .query_heads = each["heads"],
                  .kv_heads = each["kv_heads"],
                  .head_width = each["width"],
                  .scale = each["scale"],
                  .window = each["window"]};
    made.lengths = each["lengths"].get<std::vector<std::int64_t>>();
    made.largest = each["largest"].get<test::Values>();
  }
  EXPECT_EQ(cases.size(), 5u);
  return cases;
}

enum MaximaOutput : std::size_t { kMaximaOut, kMaximaLse, kMaximaWords };

/// The numbers of the words.
inline test::Values numbers_of(const test::OwnedTensor& words) {
  test::Values numbers;
  for (const double word : words.values()) {
    const auto bits = static_cast<std::uint32_t>(static_cast<std::int64_t>(word));
    numbers.push_back(static_cast<double>(number_of_ordered(bits)));
  }
  return numbers;
}

/// The forward, twice if `again`; out, lse, and the maxima unless `finds` is false. `qkv` outlives
/// the result.
inline test::Work maxima_work(const MaximaCase& c, const test::OwnedTensor& qkv, bool finds = true,
                              bool again = false) {
  return [=, &qkv](test::Place& place) {
    const AttentionShape& shape = c.shape;
    std::vector<std::int32_t> starts, lengths;
    for (std::int64_t row = 0; row < shape.sequences; ++row) {
      auto first = static_cast<std::int32_t>(row * shape.positions);
      for (const std::int64_t length : c.lengths) {
        starts.push_back(first);
        lengths.push_back(static_cast<std::int32_t>(length));
        first += lengths.back();
      }
    }
    starts.push_back(static_cast<std::int32_t>(shape.tokens()));
    const test::OwnedTensor starts_of(starts), lengths_of(lengths.empty() ? starts : lengths);
    test::Outputs out{{qkv.tensor().dtype, shape.tokens() * shape.query_heads * shape.head_width},
                      {DType::kF32, shape.tokens() * shape.query_heads},
                      test::OwnedTensor(std::vector<std::int32_t>(
                          static_cast<std::size_t>(shape.query_heads), 0))};
    AttentionForward args{.shape = shape,
                          .qkv = place.in(qkv),
                          .dropout = {},
                          .out = place.out(out[kMaximaOut]),
                          .lse = place.out(out[kMaximaLse]),
                          .workspace = place.scratch(attention_workspace_bytes(
                              shape, qkv.tensor().dtype, place.device()))};
    if (!c.lengths.empty()) {
      args.documents.starts = place.in(starts_of);
      args.documents.lengths = place.in(lengths_of);
    }
    if (finds) args.maxima = place.out(out[kMaximaWords]);
    for (int i = 0; i < (again ? 2 : 1); ++i) attention_forward(place.stream(), args);
    place.finish();
    return out;
  };
}

}  // namespace sherd::kernels
