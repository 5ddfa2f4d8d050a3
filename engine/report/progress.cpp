#include "engine/report/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <vector>

#include "core/human_text.h"

namespace sherd::engine {
namespace {

constexpr const char* kClearLine = "\r\x1b[K";

bool can_rewrite(std::FILE* out) {
  const char* terminal = std::getenv("TERM");
  return ::isatty(::fileno(out)) && terminal && *terminal && std::string_view(terminal) != "dumb";
}

std::string exposed_text(const ProgressUpdate& update) {
  std::string text = fmt::format("exposed {}", human_milliseconds(update.exposed_comm_ms));
  if (update.exposed_disk_ms) {
    text += fmt::format(", disk {}", human_milliseconds(*update.exposed_disk_ms));
  }
  if (update.exposed_by_axis.size() < 2) return text;
  std::string axes;
  for (const auto& [axis, milliseconds] : update.exposed_by_axis) {
    axes +=
        fmt::format("{}{} {}", axes.empty() ? "" : ", ", axis, human_milliseconds(milliseconds));
  }
  return fmt::format("{} ({})", text, axes);
}

}  // namespace

std::string format_progress(const ProgressUpdate& update, int width) {
  struct Field {
    int importance;  // 0 stays
    std::string text;
  };
  std::vector<Field> fields;
  fields.push_back({0, fmt::format("step {}/{}", update.step, update.max_steps)});
  if (update.loss) {
    fields.push_back({0, fmt::format("loss {:.4f}", *update.loss)});
    fields.push_back({2, fmt::format("{} tok/s", human_rate(update.tokens_per_s))});
    if (update.mfu) fields.push_back({3, fmt::format("{:.0f}% MFU", *update.mfu * 100)});
    fields.push_back({4, exposed_text(update)});
    if (update.comm_cpu_ms >= 0.05) {
      fields.push_back({6, fmt::format("comm cpu {}", human_milliseconds(update.comm_cpu_ms))});
    }
    fields.push_back({5, human_bytes(update.memory_bytes)});
  }
  if (update.time_left) {
    fields.push_back({1, fmt::format("{} left", human_duration(*update.time_left))});
  }
  const auto limit = static_cast<std::size_t>(std::max(width, 0));
  for (int least = 6; least >= 0; --least) {
    std::string line;
    for (const Field& field : fields) {
      if (field.importance <= least) line += (line.empty() ? "" : "  ") + field.text;
    }
    if (line.size() <= limit || least == 0) return line.substr(0, limit);
  }
  return {};
}

Progress::Progress(std::FILE* out) : out_(out), in_place_(can_rewrite(out)) {}

Progress::Progress(std::FILE* out, bool in_place, int width)
    : out_(out), in_place_(in_place), fixed_width_(width) {}

Progress::~Progress() {
  finish();
}

int Progress::width() const {
  if (fixed_width_ > 0) return fixed_width_;
  if (!in_place_) return INT_MAX;
  winsize size{};
  int columns = 0;
  if (::ioctl(::fileno(out_), TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  if (columns == 0) {
    const char* text = std::getenv("COLUMNS");
    columns = text ? std::atoi(text) : 0;
  }
  // One less than there is: some terminals wrap as soon as the last column is written.
  return (columns > 1 ? columns : 80) - 1;
}

void Progress::update(const ProgressUpdate& update) {
  std::lock_guard lock(mutex_);
  if (!in_place_) return;
  moving_ = format_progress(update, width());
  print(kClearLine + moving_);
}

void Progress::log(const ProgressUpdate& update) {
  std::lock_guard lock(mutex_);
  const std::string clear = moving_.empty() ? "" : kClearLine;
  moving_.clear();
  print(clear + format_progress(update, width()) + "\n");
}

void Progress::message(std::string_view line) {
  std::lock_guard lock(mutex_);
  std::string text(line);
  text.push_back('\n');
  if (in_place_ && !moving_.empty()) text = kClearLine + text + moving_;
  print(text);
}

void Progress::finish() {
  std::lock_guard lock(mutex_);
  if (!moving_.empty()) print(kClearLine);
  moving_.clear();
}

void Progress::print(const std::string& text) {
  // A closed pipe or full disk at stdout doesn't stop a run whose metrics go to a file.
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fflush(out_);
}

}  // namespace sherd::engine
