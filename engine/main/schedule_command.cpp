#include "engine/main/commands.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>

#include "core/error.h"
#include "engine/schedule/picture.h"
#include "engine/schedule/report.h"

namespace sherd::main {
namespace {

constexpr double kShortest = 1e-3, kLongest = 1e6;  // milliseconds
constexpr int kMostChunks = 1024 * 64;
constexpr std::size_t kMostTraced = 2'000'000;  // actions; beyond it no viewer follows

// A number between two others; CLI11's own range lets "nan" through.
std::function<std::string(const std::string&)> between(double least, double most) {
  return [least, most](const std::string& text) -> std::string {
    double value = 0.0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    if (is_number && value >= least && value <= most) return {};
    return fmt::format("{} isn't a number from {} to {}", text, least, most);
  };
}

schedule::Duration duration(double milliseconds) {
  return schedule::Duration(std::llround(milliseconds * 1e6));
}

// Three numbers of each chunk.
std::vector<schedule::ChunkTimes> chunk_times(const std::vector<double>& milliseconds) {
  if (milliseconds.size() % 3 != 0) {
    throw UsageError("--times has {} numbers; it takes three, or three of each chunk.",
                     milliseconds.size());
  }
  std::vector<schedule::ChunkTimes> times;
  for (std::size_t i = 0; i < milliseconds.size(); i += 3) {
    times.push_back({.forward = duration(milliseconds[i]),
                     .input_gradient = duration(milliseconds[i + 1]),
                     .weight_gradient = duration(milliseconds[i + 2])});
  }
  return times;
}

void write_trace(const std::string& path, const schedule::Answer& answer) {
  std::size_t actions = 0;
  for (const auto& of_rank : answer.schedule.ranks) actions += of_rank.size();
  if (actions > kMostTraced) {
    throw UsageError("--trace: this schedule has {} actions; {} are the most for a trace.", actions,
                     kMostTraced);
  }
  const std::string json =
      schedule::chrome_trace(answer.schedule, schedule::simulate(answer.schedule, answer.times));
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << json;
  file.close();
  if (!file) throw UsageError("--trace {}: can't be written: {}", path, std::strerror(errno));
}

// `sherd schedule`: draws a pipeline schedule and says what it costs; engine/schedule/report.h.
class ScheduleCommand {
 public:
  explicit ScheduleCommand(CLI::App& command);
  /// Errors   UsageError: numbers that the schedule can't take, or a file that can't be written.
  void run() const;

 private:
  std::string schedule_, trace_;
  int num_ranks_ = 0, num_micro_batches_ = 0, chunks_per_rank_ = 0;
  std::vector<double> times_ = {1.0, 1.0, 1.0};
  double message_ = 0.0, overlap_ = 0.0;
  bool lists_ = false;
};

ScheduleCommand::ScheduleCommand(CLI::App& command) {
  command.add_option("--pipeline", num_ranks_, "Ranks that divide the layers among themselves")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->required();
  command.add_option("--micro-batches", num_micro_batches_, "Micro-batches in a step")
      ->type_name("N")
      ->check(CLI::Range(1, 4096))
      ->required();
  command.add_option("--schedule", schedule_, "Schedule to draw (default: compare all)")
      ->type_name("NAME");
  command.add_option("--chunks-per-rank", chunks_per_rank_, "Chunks of layers on each rank")
      ->type_name("N")
      ->check(CLI::Range(1, 64));
  command
      .add_option("--times", times_,
                  "Milliseconds of a rank's layers: forward, input gradients, weight gradients "
                  "(default 1,1,1); or three per chunk, in the model's order")
      ->type_name("F,I,W[,F,I,W...]")
      ->delimiter(',')
      ->expected(3, 3 * kMostChunks)
      ->check(between(kShortest, kLongest));
  command.add_option("--message", message_, "Milliseconds that a message takes (default 0)")
      ->type_name("MS")
      ->check(between(0.0, kLongest));
  command
      .add_option("--overlap", overlap_, "Share of a pair's shorter half that overlaps (default 0)")
      ->type_name("SHARE")
      ->check(between(0.0, 1.0));
  command.add_flag("--lists", lists_, "Print each rank's list of actions instead");
  command.add_option("--trace", trace_, "Also write a Chrome trace")->type_name("FILE");
}

void ScheduleCommand::run() const {
  const std::vector<schedule::ChunkTimes> times = chunk_times(times_);
  schedule::Question question{.num_ranks = num_ranks_,
                              .num_micro_batches = num_micro_batches_,
                              .chunks_per_rank = chunks_per_rank_,
                              .of_rank_share = times[0],
                              .message = duration(message_),
                              .overlap = overlap_};
  if (times.size() > 1) question.of_chunks = times;
  if (schedule_.empty()) {
    if (times.size() > 1) {
      throw UsageError("--times per chunk needs one schedule: name it with --schedule.");
    }
    if (lists_ || !trace_.empty()) {
      throw UsageError("--lists and --trace need one schedule: name it with --schedule.");
    }
    fmt::print("{}", schedule::comparison_text(question));
    return;
  }
  const schedule::Order order = schedule::order_from(schedule_);
  const schedule::Answer answer = schedule::answer(order, question);
  if (!trace_.empty()) write_trace(trace_, answer);
  if (!lists_) {
    fmt::print("{}", schedule::answer_text(order, answer));
    return;
  }
  fmt::print("{}", schedule::header_text(answer.schedule));
  for (std::size_t rank = 0; rank < answer.schedule.ranks.size(); ++rank) {
    fmt::print("{}", schedule::rank_text(answer.schedule, rank));
  }
}

}  // namespace

Command schedule_command(CLI::App& program) {
  return make_command<ScheduleCommand>(program, "schedule",
                                       "Draw a pipeline schedule: idle time and peaks");
}

}  // namespace sherd::main
