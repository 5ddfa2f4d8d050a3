#include "engine/schedule/schedule.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <sstream>

#include "core/error.h"

namespace sherd::schedule {
namespace {

constexpr int kMostRanks = 65536;
constexpr std::array<std::string_view, 2> kPlacements = {"looped", "v"};
constexpr std::array<std::string_view, 2> kGathers = {"no", "yes"};
constexpr std::array<std::string_view, 3> kReduces = {"never", "per_step", "per_micro_batch"};

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// The words of the first line, in pairs of name and value.
class Header {
 public:
  Header(std::vector<std::string> words, int line) : words_(std::move(words)), line_(line) {}

  int count(std::string_view name) {
    const std::string& value = next(name);
    int number = 0;
    const char* const end = value.data() + value.size();
    const auto [stopped, error] = std::from_chars(value.data(), end, number);
    if (error != std::errc() || stopped != end || number < 1 || number > kMostRanks) {
      throw UsageError("schedule, line {}: {} is {}, which isn't a number from 1 to {}.", line_,
                       name, value, kMostRanks);
    }
    return number;
  }

  template <std::size_t N>
  std::size_t choice(std::string_view name, const std::array<std::string_view, N>& choices) {
    const std::string& value = next(name);
    for (std::size_t i = 0; i < N; ++i) {
      if (choices[i] == value) return i;
    }
    std::string known(choices[0]);
    for (std::size_t i = 1; i < N; ++i) known += fmt::format(", {}", choices[i]);
    throw UsageError("schedule, line {}: {} is {}, not one of {}.", line_, name, value, known);
  }

  void end() const {
    if (at_ < words_.size()) {
      throw UsageError("schedule, line {}: \"{}\" is one word too many.", line_, words_[at_]);
    }
  }

 private:
  const std::string& next(std::string_view name) {
    if (at_ + 1 >= words_.size() || words_[at_] != name) {
      throw UsageError("schedule, line {}: expected \"{}\" and its value, found \"{}\".", line_,
                       name, at_ < words_.size() ? words_[at_] : "");
    }
    at_ += 2;
    return words_[at_ - 1];
  }

  std::vector<std::string> words_;
  int line_;
  std::size_t at_ = 0;
};

Schedule from_header(Header header) {
  Schedule schedule;
  schedule.layout.num_ranks = header.count("pipeline");
  schedule.layout.chunks_per_rank = header.count("chunks_per_rank");
  schedule.layout.placement = static_cast<Placement>(header.choice("placement", kPlacements));
  schedule.num_micro_batches = header.count("micro_batches");
  schedule.gathers = header.choice("gathers", kGathers) == 1;
  schedule.reduces = static_cast<Reduces>(header.choice("reduces", kReduces));
  header.end();
  const std::int64_t forwards = std::int64_t{schedule.layout.num_ranks} *
                                schedule.layout.chunks_per_rank * schedule.num_micro_batches;
  if (forwards > kMostForwards) {
    throw UsageError("schedule: {} chunks on {} micro-batches; {} forwards are the most.",
                     forwards / schedule.num_micro_batches, schedule.num_micro_batches,
                     kMostForwards);
  }
  return schedule;
}

Action parsed(std::string_view word, int line, const std::string& whole) {
  if (const auto action = action_from(word)) return *action;
  throw UsageError("schedule, line {}: \"{}\" isn't an action; one is like 2F5 or (2F5+6B1).", line,
                   whole);
}

std::vector<Action> actions_from(const std::vector<std::string>& words, int line) {
  std::vector<Action> actions;
  for (const std::string& word : words) {
    const std::string_view text = word;
    const std::size_t plus = text.find('+');
    const bool is_pair =
        text.starts_with('(') && text.ends_with(')') && plus != std::string_view::npos;
    if (!is_pair) {
      actions.push_back(parsed(text, line, word));
      continue;
    }
    actions.push_back(parsed(text.substr(1, plus - 1), line, word));
    actions.back().overlaps_next = true;
    actions.push_back(parsed(text.substr(plus + 1, text.size() - plus - 2), line, word));
  }
  return actions;
}

}  // namespace

int ChunkLayout::rank_of(int chunk) const {
  const int position = chunk % num_ranks;
  const bool backwards = placement == Placement::kV && local_index(chunk) % 2 == 1;
  return backwards ? num_ranks - 1 - position : position;
}

std::vector<int> ChunkLayout::chunks_of(int rank) const {
  std::vector<int> chunks;
  for (int first = 0; first < num_chunks(); first += num_ranks) {
    const int chunk = first + rank;
    chunks.push_back(rank_of(chunk) == rank ? chunk : first + num_ranks - 1 - rank);
  }
  return chunks;
}

std::string actions_text(const std::vector<Action>& actions) {
  std::string text;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!text.empty()) text += ' ';
    if (actions[i].overlaps_next && i + 1 < actions.size()) {
      text += fmt::format("({}+{})", text_of(actions[i]), text_of(actions[i + 1]));
      ++i;
    } else {
      text += text_of(actions[i]);
    }
  }
  return text;
}

std::string header_text(const Schedule& schedule) {
  return fmt::format(
      "pipeline {} chunks_per_rank {} placement {} micro_batches {} gathers {} reduces {}\n",
      schedule.layout.num_ranks, schedule.layout.chunks_per_rank,
      kPlacements[static_cast<std::size_t>(schedule.layout.placement)], schedule.num_micro_batches,
      kGathers[schedule.gathers ? 1 : 0], kReduces[static_cast<std::size_t>(schedule.reduces)]);
}

std::string rank_text(const Schedule& schedule, std::size_t rank) {
  return fmt::format("rank {}: {}\n", rank, actions_text(schedule.ranks[rank]));
}

std::string text_of(const Schedule& schedule) {
  std::string text = header_text(schedule);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    text += rank_text(schedule, rank);
  }
  return text;
}

Schedule schedule_from(std::string_view text) {
  std::istringstream stream{std::string(text)};
  Schedule schedule;
  bool has_header = false;
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    if (!has_header) {
      schedule = from_header(Header(std::move(words), number));
      has_header = true;
      continue;
    }
    const std::string expected = fmt::format("{}:", schedule.ranks.size());
    if (words.size() < 2 || words[0] != "rank" || words[1] != expected) {
      throw UsageError("schedule, line {}: expected \"rank {}\" and its actions.", number,
                       expected);
    }
    schedule.ranks.push_back(actions_from({words.begin() + 2, words.end()}, number));
  }
  if (!has_header) throw UsageError("schedule: it is empty.");
  if (std::ssize(schedule.ranks) != schedule.layout.num_ranks) {
    throw UsageError("schedule: {} lines of ranks for a pipeline of {}.", schedule.ranks.size(),
                     schedule.layout.num_ranks);
  }
  return schedule;
}

}  // namespace sherd::schedule
