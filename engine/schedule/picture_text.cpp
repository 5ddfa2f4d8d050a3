#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "engine/schedule/picture.h"

namespace sherd::schedule {
namespace {

constexpr std::size_t kLabelColumns = 8, kMostBands = 8;

// A row of the picture, as wide as the whole step.
struct Row {
  std::string label, text;
};

double milliseconds(Duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

char letter_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return 'F';
    case ActionKind::kBackward:
      return 'B';
    case ActionKind::kInputGradient:
      return 'I';
    default:
      return 'W';
  }
}

template <class Call>
void for_each_compute(const Schedule& schedule, const Simulation& run, std::size_t rank,
                      const Call& call) {
  for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
    const Action& action = schedule.ranks[rank][i];
    if (is_compute(action.kind)) call(action, run.spans[rank][i]);
  }
}

class Canvas {
 public:
  Canvas(const Schedule& schedule, const Simulation& run, int columns, TimeUnit unit)
      : schedule_(schedule),
        run_(run),
        unit_(unit),
        band_(static_cast<std::size_t>(std::max(columns, 20)) - kLabelColumns) {
    Duration shortest = run.makespan;
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for_each_compute(schedule, run, rank, [&](const Action&, const Span& span) {
        if (span.end > span.begin) shortest = std::min(shortest, span.end - span.begin);
      });
    }
    const double actions = 1.0 / part_of_step(shortest);  // of the shortest, in the step
    const double room = static_cast<double>(band_);
    width_ = std::round(std::max(1.0, std::floor(room / actions)) * actions);
    width_ = std::min(width_, room * kMostBands);
  }

  std::string text() const {
    std::vector<Row> rows;
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) add_rank(rank, rows);
    const auto width = static_cast<std::size_t>(width_);
    std::string text;
    for (std::size_t begin = 0; begin < width; begin += band_) {
      const std::size_t count = std::min(band_, width - begin);
      text += time_line(begin, count);
      for (const Row& row : rows) text += line(row.label, row.text.substr(begin, count));
    }
    return text;
  }

 private:
  double part_of_step(Duration time) const {
    if (run_.makespan.count() == 0) return 1.0;
    return static_cast<double>(time.count()) / static_cast<double>(run_.makespan.count());
  }

  std::size_t column(Duration time) const {
    return static_cast<std::size_t>(std::llround(width_ * part_of_step(time)));
  }

  std::string time_line(std::size_t begin, std::size_t count) const {
    const bool share = unit_ == TimeUnit::kShareOfStep;
    const double whole = share ? 100.0 : milliseconds(run_.makespan);
    const auto at = [&](std::size_t column) {
      return fmt::format("{:.4g}", static_cast<double>(column) / width_ * whole);
    };
    const std::string from = at(begin), to = at(begin + count) + (share ? " %" : " ms");
    const std::size_t used = from.size() + to.size();
    return line("time", from + std::string(count > used ? count - used : 1, ' ') + to);
  }

  void add_rank(std::size_t rank, std::vector<Row>& rows) const {
    const auto width = static_cast<std::size_t>(width_);
    std::string letters(width, '.'), numbers(width, ' '), chunks(width, ' ');
    const int per_rank = schedule_.layout.chunks_per_rank;
    for_each_compute(schedule_, run_, rank, [&](const Action& action, const Span& span) {
      const std::size_t begin = column(span.begin), end = column(span.end);
      if (begin == end) return;
      const int local = schedule_.layout.local_index(action.chunk);
      const char letter = letter_of(action.kind);
      const bool small = per_rank == 2 && local == 1;
      letters.replace(begin, end - begin, end - begin,
                      small ? static_cast<char>(letter - 'A' + 'a') : letter);
      put(numbers, begin, end, action.micro_batch);
      put(chunks, begin, end, local);
    });
    rows.push_back({fmt::format("rank {}", rank), letters});
    rows.push_back({"", numbers});
    if (per_rank > 2) rows.push_back({"  chunk", chunks});
  }

  // The whole number, if it stands apart from the next one; else its last digit.
  static void put(std::string& text, std::size_t begin, std::size_t end, int number) {
    const std::string digits = std::to_string(number);
    const bool fits = digits.size() == 1 || digits.size() < end - begin;
    text.replace(begin, fits ? digits.size() : 1, fits ? digits : digits.substr(digits.size() - 1));
  }

  static std::string line(const std::string& label, const std::string& text) {
    std::string line = fmt::format("{:<{}}{}", label, kLabelColumns, text);
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  }

  const Schedule& schedule_;
  const Simulation& run_;
  TimeUnit unit_;
  std::size_t band_;    // columns of one band
  double width_ = 0.0;  // columns of the whole step
};

std::string legend(const Schedule& schedule) {
  const auto has = [&](ActionKind kind) {
    return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [&](const auto& actions) {
      return std::any_of(actions.begin(), actions.end(),
                         [&](const Action& action) { return action.kind == kind; });
    });
  };
  std::string text = "F forward";
  if (has(ActionKind::kBackward)) text += ", B backward";
  if (has(ActionKind::kInputGradient)) text += ", I input gradients, W weight gradients";
  text += ", . idle";
  if (schedule.layout.chunks_per_rank == 2) text += "; small letters: a rank's second chunk";
  return text + "\n";
}

}  // namespace

std::string picture(const Schedule& schedule, const Simulation& run, int columns, TimeUnit unit) {
  return Canvas(schedule, run, columns, unit).text() + legend(schedule);
}

}  // namespace sherd::schedule
