#include "engine/saving/saved_counters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/store/step_directory.h"

namespace sherd::engine {
namespace {

using nlohmann::json;

constexpr const char* kBestEvaluation = "best_evaluation";
constexpr const char* kValidatedOn = "validated_on";

class CounterReader {
 public:
  CounterReader(const checkpoint::Checkpoint& checkpoint, std::string name)
      : file_(checkpoint.manifest_path()),
        name_(std::move(name)),
        counters_(checkpoint.manifest().global->value(name_, json())) {}
  CounterReader(std::string file, std::string name, json counters)
      : file_(std::move(file)), name_(std::move(name)), counters_(std::move(counters)) {}

  bool has(const char* key) const { return counters_.is_object() && counters_.contains(key); }

  std::int64_t whole(const char* key, std::int64_t most) const {
    const json& value = at(key);
    // Numbers without sign and fraction arrive as unsigned, so 2^63 isn't taken for a negative one.
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
      refuse(key, fmt::format("expected a whole number from 0 to {}", most));
    }
    return value.get<std::int64_t>();
  }
  /// Numbers from 0 to 2^31 - 1; none where there is no such list.
  std::vector<std::int64_t> list(const char* key) const {
    constexpr std::uint64_t kMost = 0x7fffffff;
    if (!has(key)) return {};
    const json& value = at(key);
    if (!value.is_array()) refuse(key, "expected a list");
    std::vector<std::int64_t> numbers;
    for (const json& number : value) {
      if (!number.is_number_unsigned() || number.get<std::uint64_t>() > kMost) {
        refuse(key, "expected whole numbers below 2^31");
      }
      numbers.push_back(number.get<std::int64_t>());
    }
    return numbers;
  }
  /// Pairs of finite numbers; none where there is no such list.
  std::vector<optim::BadSteps::Values> pairs(const char* key) const {
    if (!has(key)) return {};
    std::vector<optim::BadSteps::Values> pairs;
    for (const json& pair : at(key)) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number()) {
        refuse(key, "expected pairs of numbers");
      }
      pairs.push_back({pair[0].get<double>(), pair[1].get<double>()});
    }
    return pairs;
  }
  double scale(const char* key) const {
    constexpr double kMost = 0x1p127;
    const json& value = at(key);
    if (!value.is_number()) refuse(key, "expected a number");
    const auto scale = value.get<double>();
    if (!(scale > 0.0 && scale < kMost)) refuse(key, "expected a scale above 0 and below 2^127");
    return scale;
  }
  std::uint64_t hash(const char* key) const {
    const json& value = at(key);
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    std::uint64_t hash = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
    if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) {
      refuse(key, "expected 16 hexadecimal digits");
    }
    return hash;
  }
  double number(const char* key) const {
    const json& value = at(key);
    if (!value.is_number()) refuse(key, "expected a number");
    return value.get<double>();
  }
  const std::string& file() const { return file_; }

 private:
  const json& at(const char* key) const {
    if (!has(key))
      throw DataError("{}: its {} lack \"{}\", so it isn't a run's.", file_, name_, key);
    return counters_.at(key);
  }
  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    throw DataError("{}: {}.{} is {}; {}.", file_, name_, key, shown(counters_.at(key).dump()),
                    expected);
  }

  std::string file_, name_;
  json counters_;
};

}  // namespace

// Letters of other languages stay: values may be names of files.
std::string shown(std::string_view text) {
  constexpr std::size_t kMostShown = 400;
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool begins_character = (byte & 0xC0u) != 0x80u;
    if (begins_character && i >= kMostShown) return result + "...";
    // U+0080 to U+009F are control characters, too: 0xC2, and a byte below 0xA0.
    const bool is_long =
        byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0u;
    const bool is_control = byte < ' ' || byte == 0x7F || is_long;
    result += is_control ? '?' : text[i];
    if (is_long) ++i;
  }
  return result;
}

json to_json(const TrainingStep::Counters& counters) {
  json saved = {{"num_updates", counters.num_updates},
                {"loss_scale", counters.scaler.scale},
                {"clean_steps", counters.scaler.clean_steps},
                {"credit", counters.scaler.credit},
                {"skips_in_a_row", counters.scaler.skips_in_a_row},
                {"total_skips", counters.scaler.total_skips}};
  if (!counters.expert_counts.empty()) saved["expert_counts"] = counters.expert_counts;
  if (counters.num_without_targets > 0) {
    saved["num_without_targets"] = counters.num_without_targets;
  }
  if (counters.reference != 0) saved["reference"] = fmt::format("{:016x}", counters.reference);
  const optim::BadSteps::State& bad = counters.bad_steps;
  if (bad != optim::BadSteps::State{}) {
    json& steps = saved["bad_steps"] = {{"in_a_row", bad.in_a_row}, {"total", bad.total}};
    for (const auto& [loss, norm] : bad.window) steps["window"].push_back({loss, norm});
  }
  return saved;
}

namespace {

optim::BadSteps::State bad_steps_of(const checkpoint::Checkpoint& checkpoint) {
  const json& global = *checkpoint.manifest().global;
  if (!global.value("counters", json::object()).contains("bad_steps")) return {};
  const CounterReader reader(checkpoint.manifest_path(), "counters.bad_steps",
                             global.at("counters").at("bad_steps"));
  const std::int64_t step = checkpoint.manifest().step;
  return {reader.pairs("window"), reader.whole("in_a_row", step), reader.whole("total", step)};
}

}  // namespace

std::vector<data::Skip> skips_of(const checkpoint::Checkpoint& checkpoint) {
  const json& global = *checkpoint.manifest().global;
  std::vector<data::Skip> skips;
  const auto found = global.find("data_skips");
  if (found == global.end()) return skips;
  const auto refuse = [&] {
    throw DataError(
        "{}: data_skips is {}; expected pairs of a step and a number of steps, or both and 1.",
        checkpoint.manifest_path(), shown(found->dump()));
  };
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  constexpr std::size_t kMostSkips = std::size_t{1} << 20;
  std::int64_t sum = 0;
  if (!found->is_array() || found->size() > kMostSkips) refuse();
  for (const json& pair : *found) {
    const bool is_rest = pair.is_array() && pair.size() == 3 && pair[2] == 1;
    if (!pair.is_array() || (pair.size() != 2 && !is_rest) || !pair[0].is_number_integer() ||
        !pair[1].is_number_integer()) {
      refuse();
    }
    const data::Skip skip{pair[0].get<std::int64_t>(), pair[1].get<std::int64_t>(), is_rest};
    const bool is_later = skips.empty() || skip.at_step >= skips.back().at_step;
    sum += std::clamp<std::int64_t>(skip.num_steps, 0, kMost);
    // After a rewind, those of later segments are ahead of the checkpoint.
    if (skip.at_step < 0 || skip.at_step > kMost || skip.num_steps < 0 || skip.num_steps > kMost ||
        sum > kMost || !is_later) {
      refuse();
    }
    skips.push_back(skip);
  }
  return skips;
}

TrainingStep::Counters counters_of(const checkpoint::Checkpoint& checkpoint) {
  const CounterReader reader(checkpoint, "counters");
  const std::int64_t step = checkpoint.manifest().step;
  constexpr std::int64_t kMostCredit = 1000;  // loss_scaling.hysteresis
  const TrainingStep::Counters counters = {
      reader.whole("num_updates", step),
      {reader.scale("loss_scale"), reader.whole("clean_steps", step),
       reader.whole("credit", kMostCredit), reader.whole("skips_in_a_row", optim::kMaxSkipsInARow),
       reader.whole("total_skips", step)},
      reader.list("expert_counts"),
      bad_steps_of(checkpoint),
      reader.has("num_without_targets") ? reader.whole("num_without_targets", step) : 0,
      reader.has("reference") ? reader.hash("reference") : 0};
  const std::int64_t skips =
      counters.scaler.total_skips + counters.bad_steps.total + counters.num_without_targets;
  if (counters.num_updates + skips != step) {
    throw DataError("{}: {} updates and {} skips aren't the {} steps that it says are done.",
                    reader.file(), counters.num_updates, skips, step);
  }
  return counters;
}

void BestEvaluation::add(std::int64_t steps_done, double validation_loss) {
  if (std::isfinite(validation_loss) && (!loss || validation_loss < *loss)) {
    *this = {validation_loss, steps_done, 0};
  } else {
    ++evaluations_since;
  }
}

json to_json(const BestEvaluation& best) {
  json saved = {{"evaluations_since", best.evaluations_since}};
  if (best.loss) {
    saved["loss"] = *best.loss;
    saved["step"] = best.step;
  }
  return saved;
}

BestEvaluation best_evaluation_of(const checkpoint::Checkpoint& checkpoint) {
  const checkpoint::Manifest& manifest = checkpoint.manifest();
  BestEvaluation best;
  if (!manifest.global->contains(kBestEvaluation)) {
    if (const auto loss = validation_loss_of(manifest)) best.add(manifest.step, *loss);
    return best;
  }
  const CounterReader reader(checkpoint, kBestEvaluation);
  if (reader.has("loss")) {
    best.loss = reader.number("loss");
    best.step = reader.whole("step", manifest.step);
  }
  // A caller of the library may evaluate more often than it takes steps.
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  best.evaluations_since = reader.whole("evaluations_since", kMost);
  return best;
}

json to_json(const ValidatedOn& on) {
  json saved = {{"best_by", on.best_by}, {"seq_length", on.seq_length}};
  if (on.data != 0) saved["data"] = fmt::format("{:016x}", on.data);
  return saved;
}

std::optional<ValidatedOn> validated_on(const checkpoint::Manifest& manifest) {
  const auto found = manifest.global->find(kValidatedOn);
  if (found == manifest.global->end() || !found->is_object()) return std::nullopt;
  const auto set = found->find("best_by"), length = found->find("seq_length");
  if (set == found->end() || !set->is_string()) return std::nullopt;
  if (length == found->end() || !length->is_number_integer()) return std::nullopt;
  ValidatedOn on{set->get<std::string>(), length->get<std::int64_t>()};
  if (const auto data = found->find("data"); data != found->end() && data->is_string()) {
    on.data = std::strtoull(data->get<std::string>().c_str(), nullptr, 16);
  }
  return on;
}

std::string best_checkpoint(checkpoint::Disk& disk, const std::string& directory) {
  std::string path;
  double lowest = 0.0;
  std::optional<ValidatedOn> on;  // what the newest was
  for (const std::int64_t step : checkpoint::committed_steps(disk, directory)) {
    try {
      const checkpoint::Checkpoint found(disk,
                                         directory + "/" + checkpoint::step_directory_name(step));
      const checkpoint::Manifest& manifest = found.manifest();
      if (path.empty()) on = validated_on(manifest);
      const auto loss = on ? validation_loss_of(manifest, *on) : validation_loss_of(manifest);
      if (!loss || (!path.empty() && *loss >= lowest)) continue;
      path = found.path();
      lowest = *loss;
    } catch (const DataError&) {  // not the best of those that open
    }
  }
  if (!path.empty()) return path;
  throw DataError(
      "{}: no checkpoint has a validation loss; checkpoint.keep_best measures one for each.",
      directory);
}

std::optional<double> validation_loss_of(const checkpoint::Manifest& manifest) {
  const auto found = manifest.global->find("validation_loss");
  if (found == manifest.global->end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::string measured_as(const checkpoint::Manifest& manifest, const ValidatedOn& own) {
  const ValidatedOn on = validated_on(manifest).value_or(own);
  return to_json(on == own ? own : on).dump();
}

std::optional<double> validation_loss_of(const checkpoint::Manifest& manifest,
                                         const ValidatedOn& on) {
  return validated_on(manifest).value_or(on) == on ? validation_loss_of(manifest) : std::nullopt;
}

}  // namespace sherd::engine
