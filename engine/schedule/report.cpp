#include "engine/schedule/report.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/error.h"
#include "engine/schedule/passes.h"
#include "engine/schedule/peaks.h"
#include "engine/schedule/picture.h"
#include "engine/schedule/validate.h"

namespace sherd::schedule {
namespace {

std::string milliseconds(Duration time) {
  return fmt::format("{:.4g} ms", std::chrono::duration<double, std::milli>(time).count());
}

std::string counted(int count, std::string_view what) {
  const char* const plural = count == 1 ? "" : what.ends_with("ch") ? "es" : "s";
  return fmt::format("{} {}{}", count, what, plural);
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100.0 * share);
}

double share_of(Duration part, Duration whole) {
  return whole.count() == 0
             ? 0.0
             : static_cast<double>(part.count()) / static_cast<double>(whole.count());
}

// Slots of chunks as micro-batches through all of a rank's layers.
std::string rank_shares(std::int64_t slots, const Schedule& schedule) {
  return fmt::format("{:.4g}", static_cast<double>(slots) / schedule.layout.chunks_per_rank);
}

std::int64_t num_sends(const std::vector<Action>& actions) {
  return std::count_if(actions.begin(), actions.end(),
                       [](const Action& action) { return is_send(action.kind); });
}

std::string comparison_line(Order order, const Question& question) {
  const auto [schedule, times, run] = answer(order, question);
  Peak most;
  std::int64_t sends = 0;
  const std::vector<Peak> peaks = peaks_by_rank(schedule);
  for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
    most.activations = std::max(most.activations, peaks[rank].activations);
    most.waiting = std::max(most.waiting, peaks[rank].waiting);
    sends = std::max(sends, num_sends(schedule.ranks[rank]));
  }
  return fmt::format("{:<18}{:>12}{:>9}{:>13}{:>9}{:>7}\n", name_of(order),
                     milliseconds(run.makespan), percent(run.idle_share()),
                     rank_shares(most.activations, schedule), rank_shares(most.waiting, schedule),
                     sends);
}

}  // namespace

Answer answer(Order order, const Question& question) {
  const int chunks =
      question.chunks_per_rank > 0 ? question.chunks_per_rank : default_chunks_per_rank(order);
  Schedule schedule = with_messages(generate({.order = order,
                                              .num_ranks = question.num_ranks,
                                              .chunks_per_rank = chunks,
                                              .num_micro_batches = question.num_micro_batches}));
  const auto violation = first_violation(schedule);
  SHERD_CHECK(!violation, "{}: {}", name_of(order), violation->text);
  StepTimes times = equal_chunks(schedule.layout, question.of_rank_share);
  if (!question.of_chunks.empty()) {
    if (question.of_chunks.size() != times.chunks.size()) {
      throw UsageError("{} on {} ranks has {} chunks, and times are given for {}.", name_of(order),
                       question.num_ranks, times.chunks.size(), question.of_chunks.size());
    }
    times.chunks = question.of_chunks;
  }
  times.message = question.message;
  times.overlap = question.overlap;
  Simulation run = simulate_each(schedule, times);
  return {std::move(schedule), std::move(times), std::move(run)};
}

std::string answer_text(Order order, const Answer& answer) {
  const auto& [schedule, times, run] = answer;
  TextPicture picture(schedule, run);
  simulate_each(schedule, times, [&](std::size_t rank, std::size_t position, const Span& span) {
    picture.add(rank, position, span);
  });
  std::string text = fmt::format("{}: {}, {} per rank, {}\n\n{}\n{:<8}{:>12}{:>9}{:>13}{:>9}\n",
                                 name_of(order), counted(schedule.layout.num_ranks, "rank"),
                                 counted(schedule.layout.chunks_per_rank, "chunk"),
                                 counted(schedule.num_micro_batches, "micro-batch"), picture.text(),
                                 "rank", "idle", "", "activations", "waiting");
  const std::vector<Peak> peaks = peaks_by_rank(schedule);
  for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
    const Duration idle = run.idle(static_cast<int>(rank));
    text += fmt::format("{:<8}{:>12}{:>9}{:>13}{:>9}\n", rank, milliseconds(idle),
                        percent(share_of(idle, run.makespan)),
                        rank_shares(peaks[rank].activations, schedule),
                        rank_shares(peaks[rank].waiting, schedule));
  }
  return text + fmt::format("a step takes {}; ranks are idle for {} of it\n",
                            milliseconds(run.makespan), percent(run.idle_share()));
}

std::string comparison_text(const Question& question) {
  std::string text = fmt::format("{}, {}\n\n{:<18}{:>12}{:>9}{:>13}{:>9}{:>7}\n",
                                 counted(question.num_ranks, "rank"),
                                 counted(question.num_micro_batches, "micro-batch"), "schedule",
                                 "step", "idle", "activations", "waiting", "sends");
  for (const Order order : all_orders()) {
    Question of_order = question;
    if (order != Order::kInterleaved1F1B) of_order.chunks_per_rank = 0;
    try {
      text += comparison_line(order, of_order);
    } catch (const UsageError& refusal) {
      text += fmt::format("{}\n", refusal.what());
    }
  }
  return text;
}

}  // namespace sherd::schedule
