#include "engine/main/schedule_command.h"

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
constexpr int kMostChunks = 256 * 64;

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

void write_trace(const std::string& path, const std::string& json) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << json;
  file.close();
  if (!file) throw UsageError("--trace {}: can't be written: {}", path, std::strerror(errno));
}

}  // namespace

ScheduleCommand::ScheduleCommand(CLI::App& app)
    : command_(
          app.add_subcommand("schedule", "Draw pipeline schedules, with idle time and memory")) {
  command_->add_option("--pipeline", num_ranks_, "Number of ranks that divide the layers")
      ->type_name("N")
      ->check(CLI::Range(1, 256))
      ->required();
  command_->add_option("--micro-batches", num_micro_batches_, "Micro-batches per step")
      ->type_name("N")
      ->check(CLI::Range(1, 2048))
      ->required();
  command_->add_option("--schedule", schedule_, "Schedule to draw (default: compare all)")
      ->type_name("NAME");
  command_->add_option("--chunks-per-rank", chunks_per_rank_, "Chunks of layers per rank")
      ->type_name("N")
      ->check(CLI::Range(1, 64));
  command_
      ->add_option("--times", times_,
                   "Milliseconds of a rank's layers: forward, input gradients, weight gradients "
                   "(default 1,1,1); or three per chunk, in the model's order")
      ->type_name("F,I,W[,F,I,W...]")
      ->delimiter(',')
      ->expected(3, 3 * kMostChunks)
      ->check(between(kShortest, kLongest));
  command_->add_option("--message", message_, "Milliseconds per message (default 0)")
      ->type_name("MS")
      ->check(between(0.0, kLongest));
  command_
      ->add_option("--overlap", overlap_,
                   "Share of the shorter half of a pair that is hidden (default 0)")
      ->type_name("SHARE")
      ->check(between(0.0, 1.0));
  command_->add_flag("--lists", lists_, "Print each rank's list of actions instead");
  command_->add_option("--trace", trace_, "Also write a Chrome trace")->type_name("FILE");
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
      throw UsageError("--times of single chunks are of one schedule: name it with --schedule.");
    }
    if (lists_ || !trace_.empty()) {
      throw UsageError("--lists and --trace are of one schedule: name it with --schedule.");
    }
    fmt::print("{}", schedule::comparison_text(question));
    return;
  }
  const schedule::Order order = schedule::order_from(schedule_);
  const schedule::Answer answer = schedule::answer(order, question);
  if (!trace_.empty()) write_trace(trace_, schedule::chrome_trace(answer.schedule, answer.run));
  fmt::print("{}",
             lists_ ? schedule::text_of(answer.schedule) : schedule::answer_text(order, answer));
}

}  // namespace sherd::main
