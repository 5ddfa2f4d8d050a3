#include "engine/saving/saved_counters.h"

#include <nlohmann/json.hpp>

namespace sherd::engine {
namespace {

using nlohmann::json;

class CounterReader {
 public:
  explicit CounterReader(const checkpoint::Checkpoint& checkpoint)
      : file_(checkpoint.manifest_path()),
        counters_(checkpoint.manifest().global->value("counters", json())) {}

  std::int64_t whole(const char* key, std::int64_t most) const {
    const json& value = at(key);
    // Numbers without sign and fraction arrive as unsigned, so 2^63 isn't taken for a negative one.
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
      refuse(key, fmt::format("expected a whole number from 0 to {}", most));
    }
    return value.get<std::int64_t>();
  }
  double scale(const char* key) const {
    constexpr double kMost = 0x1p127;
    const json& value = at(key);
    if (!value.is_number()) refuse(key, "expected a number");
    const auto scale = value.get<double>();
    if (!(scale > 0.0 && scale < kMost)) refuse(key, "expected a scale above 0 and below 2^127");
    return scale;
  }
  const std::string& file() const { return file_; }

 private:
  const json& at(const char* key) const {
    if (!counters_.is_object() || !counters_.contains(key)) {
      throw DataError("{}: its counters lack \"{}\", so it isn't a run's.", file_, key);
    }
    return counters_.at(key);
  }
  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    throw DataError("{}: counters.{} is {}; {}.", file_, key, counters_.at(key).dump(), expected);
  }

  std::string file_;
  json counters_;
};

}  // namespace

json to_json(const TrainingStep::Counters& counters) {
  return {{"num_updates", counters.num_updates},
          {"loss_scale", counters.scaler.scale},
          {"clean_steps", counters.scaler.clean_steps},
          {"credit", counters.scaler.credit},
          {"skips_in_a_row", counters.scaler.skips_in_a_row},
          {"total_skips", counters.scaler.total_skips}};
}

TrainingStep::Counters counters_of(const checkpoint::Checkpoint& checkpoint) {
  const CounterReader reader(checkpoint);
  const std::int64_t step = checkpoint.manifest().step;
  constexpr std::int64_t kMostCredit = 1000;  // loss_scaling.hysteresis
  const TrainingStep::Counters counters = {
      reader.whole("num_updates", step),
      {reader.scale("loss_scale"), reader.whole("clean_steps", step),
       reader.whole("credit", kMostCredit), reader.whole("skips_in_a_row", optim::kMaxSkipsInARow),
       reader.whole("total_skips", step)}};
  if (counters.num_updates + counters.scaler.total_skips != step) {
    throw DataError("{}: {} updates and {} skips aren't the {} steps that it says are done.",
                    reader.file(), counters.num_updates, counters.scaler.total_skips, step);
  }
  return counters;
}

std::optional<double> validation_loss_of(const checkpoint::Manifest& manifest) {
  const auto found = manifest.global->find("validation_loss");
  if (found == manifest.global->end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

}  // namespace sherd::engine
