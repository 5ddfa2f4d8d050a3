// Rotary positions in config.json: two spellings, six scalings. The precedence of keys is that of
// transformers 5.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/format/strict_json.h"
#include "engine/huggingface/config_reader.h"
#include "engine/huggingface/rotary_table.h"

namespace sherd::huggingface {
namespace {

using nlohmann::json;

constexpr auto kScalings =
    std::to_array<std::string_view>({"linear", "dynamic", "llama3", "yarn", "longrope"});
constexpr const char* kParameters = "rope_parameters";
constexpr const char* kScaling = "rope_scaling";
constexpr const char* kFull = "full_attention";
constexpr const char* kWindowed = "sliding_attention";
constexpr const char* kTheta = "rope_theta";
constexpr const char* kFraction = "partial_rotary_factor";
constexpr const char* kLength = "original_max_position_embeddings";

const json& member(const json& table, const char* key) {
  static const json kNull;
  const auto found = table.find(key);
  return found == table.end() ? kNull : *found;
}

// Whether an unused table agrees with the table that is used, in all of its keys.
bool says_the_same(const json& table, const json& taken) {
  return std::all_of(table.items().begin(), table.items().end(), [&](const auto& item) {
    return item.key() == "type" || item.value().is_null() ||
           member(taken, item.key().c_str()) == item.value();
  });
}

}  // namespace

const json& ConfigReader::table(std::string_view key) {
  const json& found = at(key);
  if (!found.is_null() && !found.is_object()) refuse(key, "isn't an object");
  return found;
}

std::optional<double> ConfigReader::present_number(std::string_view key) {
  if (!config_.contains(key)) return std::nullopt;
  const std::optional<double> value = number(key);
  if (!value) refuse(key, "is null; expected a number");
  return value;
}

// rope_scaling is used if it isn't empty.
void ConfigReader::rotary(const RotaryClass& of_class) {
  const json &parameters = table(kParameters), &old = table(kScaling);
  const bool is_old = !old.empty();
  RotaryTable rope(*this, is_old ? old : parameters, is_old ? kScaling : kParameters);
  const double theta = rope.has(kTheta)
                           ? rope.needed(kTheta)
                           : present_number(result_.family->old_theta).value_or(of_class.theta);
  if (theta == 0.0) refuse(kTheta, "is missing");
  // Both spellings, as files for both versions of transformers have them.
  const auto beside = config_.find(result_.family->old_theta);
  if (beside != config_.end() && beside->is_number() && beside->get<double>() == theta) {
    use(result_.family->old_theta);
  }
  set("model.positions", "rope");
  set("model.rope_theta", theta, rope.has(kTheta) ? rope.name() : kTheta);
  const double fraction = turned_part(rope, of_class);
  if (fraction != 1.0) set("model.rope_fraction", fraction, kFraction);
  rope_length_ = original_length(rope, of_class);
  scaling(rope, of_class);
  if (is_old && parameters.is_object()) {
    json taken = old;
    taken.update({{"rope_type", rope.type()}, {kTheta, theta}, {kFraction, fraction}});
    if (rope_length_.original > 0.0) taken[kLength] = rope_length_.original;
    if (!says_the_same(parameters, taken)) result_.unused.emplace_back(kParameters);
  }
}

// Classes that rotate whole heads read the fraction only if a scaling counts frequencies; then they
// get too few frequencies.
double ConfigReader::turned_part(RotaryTable& rope, const RotaryClass& of_class) {
  if (!of_class.fraction && std::ranges::find(kScalings, rope.type()) == kScalings.end())
    return 1.0;
  const std::string_view old = result_.family->old_fraction;
  const double fraction = rope.has(kFraction)
                              ? rope.needed(kFraction)
                              : present_number(old).value_or(of_class.fraction.value_or(1.0));
  if (!of_class.fraction && fraction != 1.0) {
    refuse(kFraction, fmt::format("is {}, but models of type {} rotate whole heads", fraction,
                                  result_.family->model_type));
  }
  return fraction;
}

// The file's own key comes first, then the class's length, then the table's.
ConfigReader::Length ConfigReader::original_length(RotaryTable& rope, const RotaryClass& of_class) {
  Length length;
  if (rope.type() != "llama3" && rope.type() != "yarn" && rope.type() != "longrope") return length;
  length.longest = number("max_position_embeddings").value_or(0.0);
  const bool in_table = rope.has(kLength);
  const double of_table = in_table ? rope.needed(kLength) : length.longest;
  length.original = present_number(kLength).value_or(of_class.length.value_or(of_table));
  if (length.original <= 0.0) refuse(kLength, "isn't above 0");
  return length;
}

void ConfigReader::rotary_by_layer(const RotaryClass& of_class, double window_theta,
                                   bool window_is_class_s) {
  const json &parameters = table(kParameters), &old = table(kScaling);
  const json &given = member(parameters, kFull), &windowed = member(parameters, kWindowed);
  if (!parameters.empty() && given.is_null() && windowed.is_null()) {
    refuse(kParameters, fmt::format("has one table; models of this type have {} and {} in it",
                                    kFull, kWindowed));
  }
  if (!old.empty() && !old.contains("rope_type") && old.contains("type")) {
    refuse(kScaling, "has type without rope_type, which versions of transformers read differently");
  }
  json full = given.is_null() ? json::object() : given;
  if (!full.is_object() || !(windowed.is_null() || windowed.is_object())) {
    refuse(kParameters, "holds a value that isn't a table");
  }
  if (!old.empty()) full.update(old);
  RotaryTable rope(*this, full, std::string(old.empty() ? kParameters : kScaling));
  RotaryTable in_windows(*this, windowed, kParameters);
  const std::optional<double> beside = present_number(kTheta);
  const double theta = rope.has(kTheta) ? rope.needed(kTheta) : beside.value_or(of_class.theta);
  if (theta == 0.0) refuse(kTheta, "is missing");
  set("model.positions", "rope");
  set("model.rope_theta", theta, rope.name());
  turned_part(rope, of_class);
  rope_length_ = {};
  rope_length_.longest = number("max_position_embeddings").value_or(0.0);
  rope_length_.original = rope.has(kLength) ? rope.needed(kLength) : rope_length_.longest;
  rope_length_.by_layer = true;
  scaling(rope, of_class);
  if (in_windows.type() != "default") {
    refuse(kParameters, "scales the windowed layers, which isn't supported");
  }
  if (in_windows.has(kTheta)) {
    window_theta = in_windows.needed(kTheta);
  } else if (window_is_class_s && beside && *beside != window_theta) {
    refuse(kTheta, fmt::format("is {}: transformers 4 takes it for windowed layers too, 5 takes {} "
                               "there; give both in {}",
                               *beside, window_theta, kParameters));
  }
  set("model.window_rope_theta", window_theta, "rope_local_base_freq");
  if (!value_of("model.rope_scaling").empty()) set("model.window_rope_scaling", "false");
}

void ConfigReader::scaling(RotaryTable& rope, const RotaryClass& of_class) {
  const std::string& type = rope.type();
  const bool is_longrope =
      type == "longrope" || (of_class.longrope_alone && (type == "su" || type == "yarn"));
  if (of_class.longrope_alone && !is_longrope && type != "default") {
    refuse(rope.name(),
           fmt::format("has rope_type {}; models of this type have default and longrope",
                       checkpoint::printable(type)));
  }
  if (is_longrope) {
    set_longrope(rope);
  } else if (type == "linear") {
    set("model.rope_scaling", "linear", rope.name());
    set("model.rope_factor", rope.needed("factor"), rope.name());
  } else if (type == "llama3") {
    set_llama3(rope);
  } else if (type == "yarn") {
    set_yarn(rope);
  } else if (type ==
             "dynamic") {  // up to the length that the model knows, frequencies stay as they are
    rope.needed("factor");
    limit_positions(static_cast<std::int64_t>(number("max_position_embeddings").value_or(0.0)),
                    "frequencies change with the text's length");
  } else if (type != "default") {
    refuse(rope.name(),
           fmt::format("has rope_type {}; default, linear, dynamic, llama3, yarn and longrope are "
                       "supported",
                       checkpoint::printable(type)));
  }
  rope.require_known(rope_keys_);
  for (const std::string& key : rope.idle(rope_keys_)) {
    result_.unused.push_back(fmt::format("{}.{}", rope.name(), key));
  }
}

void ConfigReader::set_length(const RotaryTable& rope) {
  set("model.rope_original_length", rope_length_.original, rope.name());
}

void ConfigReader::set_llama3(RotaryTable& rope) {
  set("model.rope_scaling", "llama3", rope.name());
  set("model.rope_factor", rope.needed("factor"), rope.name());
  set("model.rope_low_freq_factor", rope.needed("low_freq_factor"), rope.name());
  set("model.rope_high_freq_factor", rope.needed("high_freq_factor"), rope.name());
  set_length(rope);
}

double ConfigReader::factor_or_ratio(RotaryTable& rope) {
  return rope.number("factor").value_or(rope_length_.longest / rope_length_.original);
}

void ConfigReader::set_attention_factor(RotaryTable& rope, std::optional<double> otherwise) {
  const std::optional<double> given = rope.number("attention_factor");
  if (given && *given <= 0.0) refuse(rope.name(), "has an attention_factor that isn't above 0");
  if (const auto factor = given ? given : otherwise) {
    set("model.rope_attention_factor", *factor, rope.name());
  }
}

void ConfigReader::set_yarn(RotaryTable& rope) {
  if (!rope.has("factor")) refuse(rope.name(), "lacks factor");
  const double factor = factor_or_ratio(rope);
  const auto number_or = [&](const char* key, double missing) {  // null and 0 are none
    const double value = rope.number(key).value_or(0.0);
    return value == 0.0 ? missing : value;
  };
  set("model.rope_scaling", "yarn", rope.name());
  set("model.rope_factor", factor, rope.name());
  set("model.rope_beta_fast", number_or("beta_fast", 32.0), rope.name());
  set("model.rope_beta_slow", number_or("beta_slow", 1.0), rope.name());
  set_length(rope);
  // Of tables by layer transformers 5 doesn't look at it.
  if (!rope_length_.by_layer && rope.has("truncate")) {
    set("model.rope_truncate", rope.truth("truncate").value_or(false) ? "true" : "false",
        rope.name());
  }
  const double mscale = number_or("mscale", 0.0), of_all = number_or("mscale_all_dim", 0.0);
  std::optional<double> quotient;
  if (mscale != 0.0 && of_all != 0.0) {
    const auto scale = [&](double m) {
      return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
    };
    quotient = scale(mscale) / scale(of_all);
  }
  set_attention_factor(rope, quotient);
}

void ConfigReader::set_longrope(RotaryTable& rope) {
  set("model.rope_scaling", "longrope", rope.name());
  set("model.rope_short_factors", rope.list("short_factor"), rope.name());
  set("model.rope_long_factors", rope.list("long_factor"), rope.name());
  set_length(rope);
  set("model.rope_factor", std::max(1.0, factor_or_ratio(rope)), rope.name());
  set_attention_factor(rope, std::nullopt);
}

}  // namespace sherd::huggingface
