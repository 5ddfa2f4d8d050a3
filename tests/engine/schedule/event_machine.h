// Executes a schedule's text by rewriting facts, and knows nothing of engine/schedule: what an action
// needs is a fact that it takes away, what it makes is a fact that it leaves. Ranks move in random order.
//
// A list is good if the machine comes to its end with every gradient added once and in order, and no fact
// or message left over.
#pragma once

#include <deque>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace sherd::test {

class EventMachine {
 public:
  enum class Outcome { kGood, kWrong, kStuck };

  EventMachine(const std::string& text, std::size_t slots, unsigned seed)
      : slots_(slots), random_(seed) {
    std::istringstream lines(text);
    std::string line, word;
    std::getline(lines, line);
    std::istringstream header(line);
    std::map<std::string, std::string> values;
    for (std::string value; header >> word >> value;) values[word] = value;
    num_ranks_ = std::stoi(values["pipeline"]);
    num_chunks_ = num_ranks_ * std::stoi(values["chunks_per_rank"]);
    is_v_ = values["placement"] == "v";
    micro_batches_ = std::stoi(values["micro_batches"]);
    gathers_ = values["gathers"] == "yes";
    reduces_ = values["reduces"];
    while (std::getline(lines, line)) {
      std::istringstream words(line.substr(line.find(':') + 1));
      Rank rank;
      while (words >> word) rank.program.push_back(word);
      ranks_.push_back(rank);
    }
    for (int i = 0; i < micro_batches_; ++i) give(home(0), fact("input", 0, i));
  }

  Outcome run() {
    while (true) {
      std::vector<int> able;
      for (int rank = 0; rank < num_ranks_; ++rank) {
        if (ranks_[rank].at < ranks_[rank].program.size() && !waits(rank)) able.push_back(rank);
      }
      if (able.empty()) break;
      if (!perform(able[random_() % able.size()])) return Outcome::kWrong;
    }
    for (const Rank& rank : ranks_) {
      if (rank.at < rank.program.size()) return Outcome::kStuck;
    }
    return is_finished() ? Outcome::kGood : Outcome::kWrong;
  }

 private:
  struct Rank {
    std::vector<std::string> program;
    std::size_t at = 0;
    bool offered = false;  // without slots: its message lies there until it is taken
    std::multiset<std::string> facts;
  };
  struct Word {
    int chunk = -1, micro_batch = -1;
    std::string kind;
  };

  static Word read(const std::string& text) {
    Word word;
    std::size_t at = 0;
    word.chunk = std::stoi(text, &at);
    const std::size_t digits = text.find_first_of("0123456789", at);
    word.kind = text.substr(at, digits - at);
    if (digits != std::string::npos) word.micro_batch = std::stoi(text.substr(digits));
    return word;
  }

  static std::string fact(const std::string& name, int chunk, int micro_batch) {
    return name + " " + std::to_string(chunk) + " " + std::to_string(micro_batch);
  }

  // Down the ranks and, in a V, up again.
  int home(int chunk) const {
    int rank = 0, direction = 1;
    for (int i = 0; i < chunk; ++i) {
      if (is_v_ && (rank + direction < 0 || rank + direction >= num_ranks_)) {
        direction = -direction;
      } else {
        rank = is_v_ ? rank + direction : (rank + 1) % num_ranks_;
      }
    }
    return rank;
  }

  bool take(int rank, const std::string& fact) {
    const auto found = ranks_[rank].facts.find(fact);
    if (found == ranks_[rank].facts.end()) return false;
    ranks_[rank].facts.erase(found);
    return true;
  }
  void give(int rank, const std::string& fact) { ranks_[rank].facts.insert(fact); }
  bool has(int rank, const std::string& fact) const { return ranks_[rank].facts.contains(fact); }

  std::deque<int>& wire(const Word& word) {
    if (word.kind == "SEND_F") return wires_["down " + std::to_string(word.chunk)];
    if (word.kind == "RECV_F") return wires_["down " + std::to_string(word.chunk - 1)];
    if (word.kind == "SEND_B") return wires_["up " + std::to_string(word.chunk)];
    return wires_["up " + std::to_string(word.chunk + 1)];
  }

  // Whether the rank's next action may be possible later, but isn't now.
  bool waits(int rank) {
    const std::string& text = ranks_[rank].program[ranks_[rank].at];
    if (text[0] == '(') return false;
    const Word word = read(text);
    if (word.kind.starts_with("RECV")) return wire(word).empty();
    if (!word.kind.starts_with("SEND")) return false;
    if (slots_ == 0) return ranks_[rank].offered;
    return wire(word).size() == slots_;
  }

  bool perform(int rank) {
    const std::string text = ranks_[rank].program[ranks_[rank].at];
    if (text[0] == '(') {
      const std::size_t plus = text.find('+');
      if (!together(rank, read(text.substr(1, plus - 1)),
                    read(text.substr(plus + 1, text.size() - plus - 2)))) {
        return false;
      }
    } else if (!perform(rank, read(text))) {
      return false;
    }
    if (slots_ > 0 || text.find("SEND") == std::string::npos) ++ranks_[rank].at;
    return true;
  }

  // Neither may use what the other makes: the second must find its facts before the first leaves any.
  bool together(int rank, const Word& forward, const Word& backward) {
    if (forward.kind != "F" || backward.kind != "B") return false;
    return perform(rank, backward) && perform(rank, forward);
  }

  bool perform(int rank, const Word& word) {
    const auto [chunk, micro_batch, kind] = word;
    if (chunk < 0 || chunk >= num_chunks_ || home(chunk) != rank) return false;
    const auto named = [&](const char* name) { return fact(name, chunk, micro_batch); };
    const std::string full = fact("full", chunk, 0);
    const bool parameters = !gathers_ || has(rank, full);
    if (kind == "F") {
      if (!parameters || !take(rank, named("input"))) return false;
      give(rank, named("activations"));
      if (chunk == num_chunks_ - 1) {
        give(rank, named("gradient"));
      } else if (home(chunk + 1) == rank) {
        give(rank, fact("input", chunk + 1, micro_batch));
      } else {
        give(rank, named("output"));
      }
      return true;
    }
    if (kind == "B" || kind == "I") {
      if (!parameters || !take(rank, named("activations")) || !take(rank, named("gradient"))) {
        return false;
      }
      if (chunk > 0 && home(chunk - 1) == rank) {
        give(rank, fact("gradient", chunk - 1, micro_batch));
      } else if (chunk > 0) {
        give(rank, named("gradient of input"));
      }
      if (kind == "B") return add(chunk, micro_batch);
      give(rank, named("half"));
      return true;
    }
    if (kind == "W") return take(rank, named("half")) && add(chunk, micro_batch);
    if (kind == "SEND_F" || kind == "SEND_B") {
      if (!take(rank, named(kind == "SEND_F" ? "output" : "gradient of input"))) return false;
      wire(word).push_back(micro_batch);
      ranks_[rank].offered = slots_ == 0;
      return true;
    }
    if (kind == "RECV_F" || kind == "RECV_B") return arrive(rank, word);
    if (kind == "GATHER") {
      if (!gathers_ || has(rank, full)) return false;
      give(rank, full);
      return true;
    }
    if (kind == "RELEASE") return gathers_ && take(rank, full);
    return kind == "REDUCE" && reduce(chunk, micro_batch);
  }

  bool arrive(int rank, const Word& word) {
    std::deque<int>& messages = wire(word);
    if (messages.front() != word.micro_batch) return false;  // another micro-batch's data
    messages.pop_front();
    const bool forward = word.kind == "RECV_F";
    give(rank, fact(forward ? "input" : "gradient", word.chunk, word.micro_batch));
    if (slots_ == 0) {
      Rank& sender = ranks_[home(forward ? word.chunk - 1 : word.chunk + 1)];
      sender.offered = false;
      ++sender.at;
    }
    return true;
  }

  bool add(int chunk, int micro_batch) {
    if (reduces_ == "per_micro_batch" && reduced_[chunk] != added_[chunk]) return false;
    return added_[chunk]++ == micro_batch;
  }

  bool reduce(int chunk, int micro_batch) {
    if (reduces_ == "per_micro_batch") {
      return reduced_[chunk]++ == micro_batch && added_[chunk] == micro_batch + 1;
    }
    return reduces_ == "per_step" && micro_batch < 0 && added_[chunk] == micro_batches_ &&
           reduced_[chunk]++ == 0;
  }

  bool is_finished() {
    for (const Rank& rank : ranks_) {
      if (!rank.facts.empty()) return false;
    }
    for (const auto& [name, messages] : wires_) {
      if (!messages.empty()) return false;
    }
    const int reductions = reduces_ == "never" ? 0 : reduces_ == "per_step" ? 1 : micro_batches_;
    for (int chunk = 0; chunk < num_chunks_; ++chunk) {
      if (added_[chunk] != micro_batches_ || reduced_[chunk] != reductions) return false;
    }
    return true;
  }

  std::size_t slots_;
  std::mt19937 random_;
  int num_ranks_ = 0, num_chunks_ = 0, micro_batches_ = 0;
  bool is_v_ = false, gathers_ = false;
  std::string reduces_;
  std::vector<Rank> ranks_;
  std::map<std::string, std::deque<int>> wires_;
  std::map<int, int> added_, reduced_;
};

}  // namespace sherd::test
