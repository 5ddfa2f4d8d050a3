#include "engine/report/run_history.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/store/disk.h"
#include "core/error.h"
#include "engine/report/metrics.h"
#include "engine/report/slowest_counts.h"

namespace sherd::engine {
namespace {

using nlohmann::json;

struct Column {
  const char* key;
  Curve RunHistory::*curve;
};
constexpr Column kOfSteps[] = {
    {"loss", &RunHistory::loss},
    {"grad_norm", &RunHistory::grad_norm},
    {"lr", &RunHistory::lr},
    {"tokens_per_s", &RunHistory::tokens_per_s},
    {"exposed_comm_ms", &RunHistory::exposed_comm_ms},
};
constexpr Column kOfSomeRuns[] = {
    {"balance_loss", &RunHistory::balance_loss},
    {"z_loss", &RunHistory::z_loss},
    {"teacher_divergence", &RunHistory::teacher_divergence},
    {"mtp_loss", &RunHistory::mtp_loss},
    {"max_attention_logit", &RunHistory::max_attention_logit},
    {"data_wait_ms", &RunHistory::data_wait_ms},
};

double number_of(const json& line, const char* key) {
  const auto found = line.find(key);
  const bool is_number = found != line.end() && found->is_number();
  return is_number ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  void add(std::string_view text) {
    if (!may_be_metrics(text)) return;
    const json line = json::parse(text, nullptr, false);
    if (!line.is_object()) return;
    if (const auto version = line.find(kMetricsVersionKey); version != line.end()) {
      require_known_metrics(*version == kMetricsVersion, version->dump(-1, ' ', true), path_);
      first_step_ = 1;
    }
    const auto found = line.find("step");
    if (found == line.end() || !found->is_number_integer()) return;
    const std::int64_t step = found->get<std::int64_t>() + 1 - first_step_;
    if (line.contains("tokens_per_s")) return add_step(step, line);
    if (line.contains("val_loss")) {
      drop_from(history_.val_loss, step);
      history_.val_loss.push_back({step, number_of(line, "val_loss")});
      add_sets(step, line);
      add_scores(step, line);
    }
    if (const auto from = line.find("rewound_from"); from != line.end()) {
      while (!history_.rewinds.empty() && history_.rewinds.back().to > step) {
        history_.rewinds.pop_back();
      }
      if (from->is_number_integer()) history_.rewinds.push_back({from->get<std::int64_t>(), step});
    }
    if (line.contains("stopped_early")) history_.early_end = step;
    if (line.contains("goodput")) add_end(number_of(line, "moved_s"), number_of(line, "wall_s"));
  }
  RunHistory take() {
    SlowestCounts counts;
    for (const auto& [step, slowest] : slowest_) counts.add(slowest);
    history_.slowest = counts.text();
    return std::move(history_);
  }

 private:
  void add_sets(std::int64_t step, const json& line) {
    constexpr std::string_view kOfSet = "val_loss/", kOfAverage = "val_loss_average";
    for (const auto& [key, value] : line.items()) {
      const bool is_average = key == kOfAverage;
      if ((!is_average && !key.starts_with(kOfSet)) || !value.is_number()) continue;
      Curve& curve = history_.val_losses[is_average ? std::string("the average of the weights")
                                                    : key.substr(kOfSet.size())];
      drop_from(curve, step);
      curve.push_back({step, value.get<double>()});
    }
  }

  // "task/hellaswag/acc" is drawn as "hellaswag: acc".
  void add_scores(std::int64_t step, const json& line) {
    constexpr std::string_view kTask = "task/", kBits = "bits_per_byte", kQuestions = "/questions";
    for (const auto& [key, value] : line.items()) {
      std::string title;
      if (key.starts_with(kTask) && !key.ends_with(kQuestions)) {
        const std::size_t name_end = key.rfind('/');
        if (name_end <= kTask.size()) continue;
        title = key.substr(kTask.size(), name_end - kTask.size()) + ": " + key.substr(name_end + 1);
      } else if (key == kBits) {
        title = "Bits per byte";
      } else if (key.starts_with(std::string(kBits) + "/")) {
        title = "Bits per byte of " + key.substr(kBits.size() + 1);
      }
      if (title.empty() || !value.is_number()) continue;
      Curve& curve = history_.scores[title];
      drop_from(curve, step);
      curve.push_back({step, value.get<double>()});
    }
  }

  void add_step(std::int64_t step, const json& line) {
    history_.dropped_lines += drop_from(history_.loss, step);
    drop_from(history_.val_loss, step);
    drop_from(history_.memory, step);
    for (auto* curves : {&history_.val_losses, &history_.scores, &history_.source_losses}) {
      for (auto& [name, curve] : *curves) drop_from(curve, step);
    }
    auto& bad_steps = history_.bad_steps;
    while (!bad_steps.empty() && bad_steps.back() >= step) bad_steps.pop_back();
    if (line.contains("bad_step")) bad_steps.push_back(step);
    history_.early_end.reset();  // it continued
    for (const Column& column : kOfSteps) {
      Curve& curve = history_.*column.curve;
      drop_from(curve, step);
      curve.push_back({step, number_of(line, column.key)});
    }
    constexpr std::string_view kOfSource = "loss/";
    for (const auto& [key, value] : line.items()) {
      if (!key.starts_with(kOfSource) || !value.is_number()) continue;
      history_.source_losses[key.substr(kOfSource.size())].push_back({step, value.get<double>()});
    }
    for (const Column& column : kOfSomeRuns) {
      Curve& curve = history_.*column.curve;
      drop_from(curve, step);
      if (line.contains(column.key)) curve.push_back({step, number_of(line, column.key)});
    }
    const json peak = line.value("peak_bytes", json::object());
    if (peak.is_object()) history_.memory.push_back({step, number_of(peak, "total")});
    add_slowest(step, line);
    const double tokens = number_of(line, "tokens");
    if (tokens >= 0.0 && tokens < 0x1p62) history_.tokens = static_cast<std::int64_t>(tokens);
  }

  void add_slowest(std::int64_t step, const json& line) {
    slowest_.erase(slowest_.lower_bound(step), slowest_.end());
    const double rank = number_of(line, "slowest_rank"), own = number_of(line, "slowest_rank_ms");
    const double median = number_of(line, "median_rank_ms");
    if (!(rank >= 0.0 && rank < 0x1p30 && own >= 0.0 && median >= 0.0)) return;
    slowest_[step] = {static_cast<int>(rank), own, median};
  }

  void add_end(double moved_s, double wall_s) {
    if (!(moved_s >= 0.0) || !(wall_s > 0.0)) return;
    moved_s_ += moved_s;
    wall_s_ += wall_s;
    history_.goodput = moved_s_ / wall_s_;
  }

  static std::int64_t drop_from(Curve& curve, std::int64_t step) {
    const std::int64_t before = std::ssize(curve);
    while (!curve.empty() && curve.back().step >= step) curve.pop_back();
    return before - std::ssize(curve);
  }

  const std::string& path_;
  std::int64_t first_step_ = 0;  // a file without the version's line counts from 0
  RunHistory history_;
  std::map<std::int64_t, StepMetrics::Slowest> slowest_;  // by step
  double moved_s_ = 0.0, wall_s_ = 0.0;                   // of all ends
};

std::vector<double> numbers_of(const Curve& curve) {
  std::vector<double> numbers;
  for (const CurvePoint& point : curve) {
    if (std::isfinite(point.value)) numbers.push_back(point.value);
  }
  return numbers;
}

}  // namespace

RunHistory parse_history(std::string_view text, const std::string& path) {
  Reader reader(path);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    reader.add(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return reader.take();
}

RunHistory read_history(const std::string& folder) {
  checkpoint::Disk& disk = checkpoint::posix_disk();
  const std::string path = folder + "/metrics.jsonl";
  if (!checkpoint::exists(disk, path)) {
    throw DataError("{}: doesn't exist; name a run's folder.", path);
  }
  return parse_history(checkpoint::read_file(disk, path, kMostMetricsBytes), path);
}

std::optional<CurvePoint> lowest(const Curve& curve) {
  std::optional<CurvePoint> found;
  for (const CurvePoint& point : curve) {
    if (std::isfinite(point.value) && (!found || point.value < found->value)) found = point;
  }
  return found;
}

std::optional<double> last_value(const Curve& curve) {
  const std::vector<double> numbers = numbers_of(curve);
  if (numbers.empty()) return {};
  return numbers.back();
}

std::optional<double> mean(const Curve& curve) {
  const std::vector<double> numbers = numbers_of(curve);
  if (numbers.empty()) return {};
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

std::optional<double> median(const Curve& curve) {
  std::vector<double> numbers = numbers_of(curve);
  if (numbers.empty()) return {};
  const auto middle = numbers.begin() + std::ssize(numbers) / 2;
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

}  // namespace sherd::engine
