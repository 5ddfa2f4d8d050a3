#include "engine/report/progress.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <utility>
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
  if (!in_place_ || !write_waiting()) return;
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
  write(std::exchange(waiting_, {}) + left_out());
}

// One rank prints, and the others would declare it dead if it waited for a reader.
void Progress::print(const std::string& text) {
  constexpr std::size_t kMostWaiting = std::size_t{1} << 20;
  write_waiting();
  if (num_left_out_ > 0 || waiting_.size() + text.size() > kMostWaiting) {
    num_left_out_ += std::ranges::count(text, '\n');
    return;
  }
  waiting_ += text;
  write_waiting();
}

// True if nothing waits any more.
bool Progress::write_waiting() {
  constexpr std::size_t kPiece = PIPE_BUF;  // a pipe that takes anything takes so much
  std::size_t written = 0;
  while (written < waiting_.size() && takes_more()) {
    const std::string_view rest = std::string_view(waiting_).substr(written);
    write(rest.substr(0, kPiece));
    written += std::min(rest.size(), kPiece);
  }
  waiting_.erase(0, written);
  if (waiting_.empty()) waiting_ = left_out();
  return waiting_.empty();
}

std::string Progress::left_out() {
  const std::int64_t lines = std::exchange(num_left_out_, 0);
  if (lines == 0) return {};
  return fmt::format("{} lines are left out here: nobody read them in time\n", lines);
}

bool Progress::takes_more() const {
  pollfd file{::fileno(out_), POLLOUT, 0};
  return file.fd < 0 || ::poll(&file, 1, 0) != 0;
}

void Progress::write(std::string_view text) {
  // A closed pipe or full disk at stdout doesn't stop a run whose metrics go to a file.
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fflush(out_);
}

}  // namespace sherd::engine
