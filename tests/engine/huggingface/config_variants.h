/// Variants of config.json (tests/reference/huggingface/config_variants.py), and what Sherd makes of them.
#pragma once

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "engine/generate/score.h"
#include "engine/inference/text_model.h"
#include "engine/launch/machine.h"
#include "tests/engine/huggingface/folder_support.h"

namespace sherd::engine::config_variants {

struct Outcome {
  std::optional<double> score;  ///< the log-likelihood of a fixed row of tokens
  std::string refused;          ///< else why not, without the folder's name
};

inline json applied(json config, const json& variant) {
  for (const json& key : variant.value("drop", json::array())) {
    config.erase(key.get<std::string>());
  }
  const json set = variant.value("set", json::object());
  for (const auto& [key, value] : set.items()) config[key] = value;
  return config;
}

/// model.safetensors with tensors of these names and shapes, by the formula of folders.py.
inline std::string weights_of(const json& shapes) {
  json header = json::object();
  std::string data;
  for (const auto& [name, value] : shapes.items()) {
    const auto shape = value.get<std::vector<std::int64_t>>();
    const auto numel =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    const std::size_t begin = data.size();
    for (std::int64_t i = 0; i < numel; ++i) {
      append<float>(data, weight_of(name, shape.size() == 1, i));
    }
    header[name] = {{"dtype", "F32"}, {"shape", value}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  return bytes_of_length(text.size()) + text + data;
}

class Reader {
 public:
  Outcome read(const json& config, const json& shapes) {
    folder_.write("m/config.json", config.dump());
    const std::string key = shapes.dump();
    if (key != written_) folder_.write("m/model.safetensors", weights_of(shapes));
    written_ = key;
    Outcome outcome;
    try {
      outcome.score = score();
    } catch (const Error& error) {
      outcome.refused = replaced(error.what(), folder_.file("m"), "m");
    }
    return outcome;
  }

 private:
  double score() const {
    TextModel model({.checkpoint = folder_.file("m"), .ranks = {}, .machine = cpu_machine()},
                    TextModel::Text::kWhenNeeded);
    double result = 0.0;
    const auto use = [&](const sharding::Rank&, Decoder& decoder) {
      std::vector<std::int32_t> tokens;
      for (std::int64_t t = 0; t < kTokens; ++t) {
        tokens.push_back(static_cast<std::int32_t>((3 * t * t + 7 * t) % decoder.vocab_size()));
      }
      const std::span<const std::int32_t> all(tokens);
      result = score_continuation(decoder, all.first(1), all.subspan(1)).log_likelihood;
    };
    model.run(64, use, {});
    return result;
  }

  test::TempFolder folder_{test::memory_folder()};
  std::string written_;
};

}  // namespace sherd::engine::config_variants
