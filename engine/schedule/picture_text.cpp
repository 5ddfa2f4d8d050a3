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

double as_milliseconds(Duration time) {
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

}  // namespace

class TextPicture::Canvas {
 public:
  Canvas(const Schedule& schedule, const Simulation& run, int columns, TimeUnit unit)
      : schedule_(schedule),
        makespan_(run.makespan),
        unit_(unit),
        band_(static_cast<std::size_t>(std::max(columns, 20)) - kLabelColumns) {
    Duration shortest = makespan_;
    if (run.shortest_compute.count() > 0) shortest = std::min(shortest, run.shortest_compute);
    const double actions = 1.0 / part_of_step(shortest);  // of the shortest, in the step
    const double room = static_cast<double>(band_);
    width_ = std::round(std::max(1.0, std::floor(room / actions)) * actions);
    width_ = std::min(width_, room * kMostBands);
    const auto width = static_cast<std::size_t>(width_);
    ranks_.resize(schedule.ranks.size(),
                  {std::string(width, '.'), std::string(width, ' '), std::string(width, ' ')});
  }

  void add(std::size_t rank, const Action& action, const Span& span) {
    if (!is_compute(action.kind)) return;
    const std::size_t begin = column(span.begin), end = column(span.end);
    if (begin == end) return;
    const int local = schedule_.layout.local_index(action.chunk);
    const char letter = letter_of(action.kind);
    const bool small = schedule_.layout.chunks_per_rank == 2 && local == 1;
    Rank& rows = ranks_[rank];
    rows.letters.replace(begin, end - begin, end - begin,
                         small ? static_cast<char>(letter - 'A' + 'a') : letter);
    put(rows.numbers, begin, end, action.micro_batch);
    put(rows.chunks, begin, end, local);
  }

  std::string text() const {
    std::vector<Row> rows;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      rows.push_back({fmt::format("rank {}", rank), ranks_[rank].letters});
      rows.push_back({"", ranks_[rank].numbers});
      if (schedule_.layout.chunks_per_rank > 2) rows.push_back({"  chunk", ranks_[rank].chunks});
    }
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
    if (makespan_.count() == 0) return 1.0;
    return static_cast<double>(time.count()) / static_cast<double>(makespan_.count());
  }

  std::size_t column(Duration time) const {
    return static_cast<std::size_t>(std::llround(width_ * part_of_step(time)));
  }

  std::string time_line(std::size_t begin, std::size_t count) const {
    const bool share = unit_ == TimeUnit::kShareOfStep;
    const double whole = share ? 100.0 : as_milliseconds(makespan_);
    const auto at = [&](std::size_t column) {
      return fmt::format("{:.4g}", static_cast<double>(column) / width_ * whole);
    };
    const std::string from = at(begin), to = at(begin + count) + (share ? " %" : " ms");
    const std::size_t used = from.size() + to.size();
    return line("time", from + std::string(count > used ? count - used : 1, ' ') + to);
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

  struct Rank {
    std::string letters, numbers, chunks;
  };

  const Schedule& schedule_;
  Duration makespan_;
  TimeUnit unit_;
  std::size_t band_;    // columns of one band
  double width_ = 0.0;  // columns of the whole step
  std::vector<Rank> ranks_;
};

namespace {

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

TextPicture::TextPicture(const Schedule& schedule, const Simulation& run, int columns,
                         TimeUnit unit)
    : schedule_(schedule), canvas_(std::make_unique<Canvas>(schedule, run, columns, unit)) {}
TextPicture::~TextPicture() = default;

void TextPicture::add(std::size_t rank, std::size_t position, const Span& span) {
  canvas_->add(rank, schedule_.ranks[rank][position], span);
}

std::string TextPicture::text() const {
  return canvas_->text() + legend(schedule_);
}

std::string picture(const Schedule& schedule, const Simulation& run, int columns, TimeUnit unit) {
  TextPicture picture(schedule, run, columns, unit);
  for (std::size_t rank = 0; rank < run.spans.size(); ++rank) {
    for (std::size_t i = 0; i < run.spans[rank].size(); ++i) {
      picture.add(rank, i, run.spans[rank][i]);
    }
  }
  return picture.text();
}

}  // namespace sherd::schedule
