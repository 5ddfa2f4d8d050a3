/// Models of published families as tests/reference/families.json has them: shape, weights, and how the
/// family's tensors become Sherd's parameters.
///
/// Sherd's parameters are made of the family's tensors, and their gradients are taken apart again, by
/// an index for each element: rows are stacked, transposed, and heads that are turned in part or in
/// neighbouring pairs have their rows in another order.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/model/transformer.h"
#include "engine/recipe/recipe.h"
#include "engine/train/model_shape.h"
#include "kernels/rotary_frequencies.h"
#include "tests/engine/model/reference_values.h"
#include "tests/where.h"

namespace sherd::testing {

inline const Json& file() {
  static const Json json = [] {
    std::ifstream in(std::string(SHERD_SOURCE_DIR) + "/tests/reference/families.json");
    return Json::parse(in);
  }();
  return json;
}

inline std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const auto& [name, family] : file().at("cases").items()) names.push_back(name);
  return names;
}

inline std::string yaml_of(const Json& value) {
  if (!value.is_array())
    return value.is_string() ? "\"" + value.get<std::string>() + "\"" : value.dump();
  std::string list = "[";
  for (const Json& item : value) list += (list.size() > 1 ? ", " : "") + item.dump();
  return list + "]";
}

using ValuesByName = std::map<std::string, std::vector<float>>;

/// Mistakes that a test of these models must see.
struct Mistake {
  bool rows_of_heads_stay = false;   ///< no permutation of queries' and keys' rows
  bool heads_change_places = false;  ///< each query head has the norm weights of the next one
  std::function<void(model::ModelShape&)> of_shape{};
};

/// One of Sherd's elements: element `at` of the family's tensor.
struct Source {
  std::string tensor;
  std::vector<std::size_t> at;  ///< for each element of the part, in Sherd's order
};

class Family {
 public:
  explicit Family(const std::string& name, const Mistake& mistake = {})
      : json_(file().at("cases").at(name)), mistake_(mistake) {
    engine::RecipeRequest request;
    request.path = name;
    request.reads_data = false;
    request.text = "model:\n";
    for (const auto& [key, value] : json_.at("model").items()) {
      *request.text += "  " + key + ": " + yaml_of(value) + "\n";
    }
    *request.text += fmt::format(
        "data: {{path: none}}\ntraining: {{seq_length: {}, global_batch_size: {}, max_steps: 1}}\n",
        file().at("batch").at("positions").get<int>(),
        file().at("batch").at("sequences").get<int>());
    shape_ = engine::model_shape(engine::resolve_recipe(request).values);
    if (mistake.of_shape) mistake.of_shape(shape_);
    for (const auto& [tensor, entry] : json_.at("tensors").items()) make_weights(tensor, entry);
    for (const Json& parameter : json_.at("parameters")) assemble(parameter);
  }

  const Json& json() const { return json_; }
  const model::ModelShape& shape() const { return shape_; }
  const ValuesByName& weights() const { return weights_; }

  /// Gradients of Sherd's parameters as gradients of the family's tensors.
  ValuesByName taken_apart(const ValuesByName& gradients) const {
    ValuesByName apart;
    for (const auto& [tensor, values] : tensors_) apart[tensor].resize(values.size(), 0.0f);
    for (const auto& [name, sources] : sources_) {
      std::size_t element = 0;
      for (const Source& source : sources) {
        for (const std::size_t at : source.at) {
          apart[source.tensor][at] += gradients.at(name)[element++];
        }
      }
    }
    return apart;
  }

 private:
  void make_weights(const std::string& tensor, const Json& entry) {
    std::size_t count = 1;
    for (const std::size_t size : entry.at("shape")) count *= size;
    const bool vector = entry.at("shape").size() == 1;
    const bool norm =
        tensor.find("norm") != std::string::npos || tensor.find(".ln_") != std::string::npos;
    const bool one = vector && norm && tensor.ends_with("weight") && !json_.at("one_plus");
    for (std::size_t i = 0; i < count; ++i) {
      const double value = (vector ? 0.1 : 0.2) * u(i, entry.at("number")) + (one ? 1.0 : 0.0);
      tensors_[tensor].push_back(static_cast<float>(value));
    }
  }

  void assemble(const Json& parameter) {
    const std::string name = parameter.at("name");
    for (const Json& part : parameter.at("parts")) {
      Source source{part[0], {}};
      append_part(source, part[1]);
      for (const std::size_t at : source.at) {
        weights_[name].push_back(tensors_.at(source.tensor)[at]);
      }
      sources_[name].push_back(std::move(source));
    }
    if (mistake_.heads_change_places && name.ends_with(".query_norm.weight")) {
      std::rotate(weights_[name].begin(), weights_[name].begin() + shape_.head_width(),
                  weights_[name].end());
    }
  }

  // The rows of the family's tensor that a part takes, in Sherd's order.
  void append_part(Source& source, const std::string& part) const {
    const auto sizes =
        json_.at("tensors").at(source.tensor).at("shape").get<std::vector<std::size_t>>();
    const std::size_t rows = sizes[0], columns = sizes.size() == 2 ? sizes[1] : 1;
    if (part == "transposed") {
      for (std::size_t c = 0; c < columns; ++c) {
        for (std::size_t r = 0; r < rows; ++r) source.at.push_back(r * columns + c);
      }
      return;
    }
    const auto K = static_cast<std::size_t>(shape_.head_width());
    const auto H = static_cast<std::size_t>(shape_.query_heads);
    const auto G = static_cast<std::size_t>(shape_.kv_heads);
    const bool of_three = part.ends_with("of three");
    const bool fused = !of_three && rows == (H + 2 * G) * K;
    const auto add_row = [&](std::size_t row) {
      for (std::size_t c = 0; c < columns; ++c) source.at.push_back(row * columns + c);
    };
    if (part == "rows") {
      for (std::size_t row = 0; row < rows; ++row) add_row(row);
      return;
    }
    if (part == "matrix of heads") {  // [heads, K]
      for (std::size_t head = 0; head < rows; ++head) {
        for (std::size_t d = 0; d < K; ++d) source.at.push_back(head * K + family_row(d));
      }
      return;
    }
    const char which = part == "head" ? 'q' : part[0];
    const std::size_t heads = part == "head" ? 1 : which == 'q' ? H : G;
    const std::size_t place = which == 'q' ? 0 : which == 'k' ? 1 : 2;
    const std::size_t before = fused ? (which == 'q' ? 0 : which == 'k' ? H * K : (H + G) * K) : 0;
    for (std::size_t head = 0; head < heads; ++head) {
      // Three matrices in one: a head's query, key and value rows are adjacent.
      const std::size_t first = of_three ? (3 * head + place) * K : before + head * K;
      for (std::size_t d = 0; d < K; ++d) {
        add_row(first + (which == 'v' ? d : family_row(d)));
      }
    }
  }

  // Which row of a head of the family is Sherd's row d: Sherd turns the pairs (j, j + K/2), j < r/2.
  std::size_t family_row(std::size_t d) const {
    if (mistake_.rows_of_heads_stay) return d;
    const auto K = static_cast<std::size_t>(shape_.head_width()), half = K / 2;
    if (shape_.positions != model::Positions::kRope) return d;
    const auto r =
        static_cast<std::size_t>(kernels::rotated_width(shape_.rotary[0], shape_.head_width()));
    const std::size_t pair = d % half, high = d / half;
    if (pair >= r / 2) return r + (pair - r / 2) + high * (half - r / 2);
    return json_.at("interleaved") ? 2 * pair + high : pair + high * (r / 2);
  }

  const Json& json_;
  Mistake mistake_;
  model::ModelShape shape_;
  ValuesByName tensors_, weights_;
  std::map<std::string, std::vector<Source>> sources_;
};

inline std::vector<std::int32_t> tokens(const model::ModelShape& shape, std::uint32_t kind) {
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < shape.tokens(); ++t) {
    ids.push_back(static_cast<std::int32_t>(reference_hash(static_cast<std::uint32_t>(t), kind) %
                                            static_cast<std::uint32_t>(shape.vocab_size)));
  }
  return ids;
}

/// Every unit's parameters, or gradients, as one device that holds everything has them.
class Units {
 public:
  Units(const model::ModelShape& shape, const ValuesByName* values) {
    for (const UnitSpec& unit : model::parameter_table(shape)) {
      std::vector<Tensor>& views = unit.id.role == UnitRole::kLayer
                                       ? part_of(layers_[unit.id.layer], unit.id.part)
                                       : (unit.id.role == UnitRole::kHead ? head_ : embedding_);
      for (const ParameterSpec& parameter : unit.parameters) {
        std::vector<float>& memory = values_[parameter.name];
        memory.resize(static_cast<std::size_t>(parameter.numel()));
        if (values != nullptr) memory = values->at(parameter.name);
        views.push_back({memory.data(), DType::kF32, std::ssize(memory)});
      }
    }
  }
  const std::vector<Tensor>& first() const { return embedding_; }
  /// By part.
  const std::vector<std::vector<Tensor>>& block(std::int64_t i) const {
    return layers_.at(static_cast<int>(i));
  }
  const std::vector<Tensor>& head(const model::ModelShape& shape) const {
    return shape.tied ? embedding_ : head_;
  }
  const ValuesByName& values() const { return values_; }

 private:
  ValuesByName values_;
  static std::vector<Tensor>& part_of(std::vector<std::vector<Tensor>>& layer, int part) {
    const auto index = static_cast<std::size_t>(part);
    if (layer.size() <= index) layer.resize(index + 1);
    return layer[index];
  }

  std::vector<Tensor> embedding_, head_;
  std::map<int, std::vector<std::vector<Tensor>>> layers_;
};

/// What one pass of a family's model computed.
struct FamilyResult {
  double loss = 0.0;
  std::vector<float> logits;  ///< may be empty
  ValuesByName gradients;     ///< of the family's tensors
};

/// How far what was computed is from what transformers did, in units of what is allowed: the worst of
/// loss, logits and all gradients. At most 1 is right.
struct Distance {
  double worst = 0.0;
  std::string where = "nowhere";

  void see(double actual, double expected, double allowed, const std::string& label) {
    const double off = std::abs(actual - expected) / allowed;
    if (!(off <= worst)) worst = off, where = fmt::format("{}: {} and {}", label, actual, expected);
  }
};

inline Distance distance(const Family& family, const FamilyResult& actual) {
  const Json& json = family.json();
  Distance distance;
  const double loss = json.at("loss");
  distance.see(actual.loss, loss, 2e-6 * loss, "loss");
  if (!actual.logits.empty()) {
    const double logits_norm = json.at("logits_norm");
    const double rms = logits_norm / std::sqrt(static_cast<double>(actual.logits.size()));
    distance.see(norm_of(actual.logits), logits_norm, 1e-5 * logits_norm, "logits' norm");
    for (std::size_t i = 0; i < json.at("logits").size(); ++i) {
      const std::size_t at = json.at("logits_indices")[i];
      distance.see(actual.logits[at], json.at("logits")[i], 3e-5 * rms,
                   fmt::format("logit {}", at));
    }
  }
  for (const auto& [tensor, entry] : json.at("tensors").items()) {
    const std::vector<float>& values = actual.gradients.at(tensor);
    const double norm = entry.at("norm");
    distance.see(norm_of(values), norm, 2e-5 * norm, tensor + " norm");
    distance.see(projection_of(values, entry.at("number")), entry.at("projection"), 2e-5 * norm,
                 tensor + " projection");
    const double size = norm / std::sqrt(static_cast<double>(values.size()));
    for (std::size_t i = 0; i < entry.at("indices").size(); ++i) {
      const std::size_t at = entry.at("indices")[i];
      distance.see(values[at], entry.at("gradient")[i], 2e-4 * size,
                   fmt::format("{}[{}]", tensor, at));
    }
  }
  return distance;
}

}  // namespace sherd::testing
