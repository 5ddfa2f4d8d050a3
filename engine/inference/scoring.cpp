#include "engine/inference/scoring.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/json_bounds.h"
#include "engine/data/chat/chat_format.h"
#include "engine/data/task.h"
#include "engine/generate/score.h"
#include "engine/inference/generation.h"
#include "engine/inference/in_order.h"
#include "engine/inference/text_model.h"
#include "engine/launch/stop_signals.h"

namespace sherd::engine {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kUsualContext = 2048;
constexpr std::int64_t kUsualNewTokens = 256;

struct Question {
  std::string where;  ///< "requests.jsonl:7"
  Json json;

  [[noreturn]] void fail(const std::string& what) const { throw DataError("{}: {}", where, what); }
  bool has(const char* key) const { return json.contains(key); }
};

/// Lines as they come, for whichever rank asks.
class Questions {
 public:
  explicit Questions(const ScoringRequest& request) : request_(request) {}

  /// The one of this number, for one of `num_askers` ranks; all up to it are read. None after the
  /// last.
  std::optional<Question> get(std::size_t number, int num_askers) {
    std::lock_guard lock(mutex_);
    while (num_read_ <= number) {
      std::string line;
      do {
        if (!std::getline(*request_.questions, line)) return std::nullopt;
        ++line_number_;
      } while (line.find_first_not_of(" \t\r") == std::string::npos);
      Question question{fmt::format("{}:{}", request_.name, line_number_), {}};
      check_json_bounds(line, question.where);
      question.json = Json::parse(line, nullptr, false);
      if (!question.json.is_object()) question.fail("a question is a JSON object.");
      waiting_.emplace(num_read_++, Waiting{std::move(question), num_askers});
    }
    const auto found = waiting_.find(number);
    Question question = found->second.question;
    if (--found->second.num_askers == 0) waiting_.erase(found);
    return question;
  }
  /// The first that no rank has taken.
  std::size_t take() {
    std::lock_guard lock(mutex_);
    return num_taken_++;
  }

 private:
  struct Waiting {
    Question question;
    int num_askers;
  };
  const ScoringRequest& request_;
  std::mutex mutex_;
  std::map<std::size_t, Waiting> waiting_;
  std::size_t num_read_ = 0, num_taken_ = 0;
  std::int64_t line_number_ = 0;
};

class Answerer {
 public:
  Answerer(const TextModel& model, Decoder& decoder) : model_(model), decoder_(decoder) {}

  Json operator()(const Question& question) {
    if (question.has("sherd_task")) return question.json;
    if (question.has("choices")) return choices(question);
    if (question.has("continuation")) return continuation(question);
    if (question.has("text")) return text(question);
    if (question.has("prompt")) return generation(question);
    if (question.has("messages")) return rendered(question);
    question.fail(
        "expected \"context\" and \"continuation\", \"text\", \"prompt\", or \"messages\".");
  }

 private:
  static std::string string_of(const Question& question, const char* key) {
    const auto found = question.json.find(key);
    if (found == question.json.end() || !found->is_string()) {
      question.fail(fmt::format("\"{}\" isn't a text.", key));
    }
    return found->get<std::string>();
  }
  template <class Number>
  static Number number_of(const Question& question, const char* key, Number usual, Number least,
                          Number most) {
    const auto found = question.json.find(key);
    if (found == question.json.end() || found->is_null()) return usual;
    const bool is_right =
        std::is_integral_v<Number> ? found->is_number_integer() : found->is_number();
    const double value = is_right ? found->get<double>() : -1.0;
    if (!is_right || value < static_cast<double>(least) || value > static_cast<double>(most)) {
      question.fail(fmt::format("\"{}\" isn't a number from {} to {}.", key, least, most));
    }
    return found->get<Number>();
  }

  /// None if the key's value isn't a list: then it is a text.
  std::optional<Ids> listed_ids(const Question& question, const char* key) const {
    const auto found = question.json.find(key);
    if (found == question.json.end() || !found->is_array()) return std::nullopt;
    Ids ids;
    for (const Json& id : *found) {
      const std::int64_t vocab_size = decoder_.vocab_size();
      const std::int64_t value = id.is_number_integer() ? id.get<std::int64_t>() : -1;
      if (value < 0 || value >= vocab_size) {
        question.fail(fmt::format("\"{}\" has {}, which isn't a token from 0 to {}.", key,
                                  id.dump(), vocab_size - 1));
      }
      ids.push_back(static_cast<std::int32_t>(value));
    }
    return ids;
  }

  Ids with_beginning(Ids ids) const {
    if (ids.empty()) ids = {model_.first_token()};
    return ids;
  }

  Json continuation(const Question& question) {
    Ids context, continuation;
    if (const auto listed = listed_ids(question, "continuation")) {
      continuation = *listed;
      if (question.has("context")) {
        const auto before = listed_ids(question, "context");
        if (!before) question.fail("\"continuation\" is a list of ids, and \"context\" isn't.");
        context = *before;
      }
    } else {
      std::string before = question.has("context") ? string_of(question, "context") : "";
      std::string after = string_of(question, "continuation");
      const std::size_t end = before.find_last_not_of(" \t\n\r") + 1;
      after = before.substr(end) + after;
      before.resize(end);
      context = before.empty() ? model_.text().before_document() : model_.prompt_ids(before);
      Ids all = before.empty() ? context : model_.prompt_ids(before + after);
      if (before.empty()) {
        const Ids ids = model_.text().ids(after);
        all.insert(all.end(), ids.begin(), ids.end());
      }
      continuation.assign(all.begin() + std::min(std::ssize(context), std::ssize(all)), all.end());
    }
    if (continuation.empty()) question.fail("its continuation has no tokens of its own.");
    const Score score = score_continuation(decoder_, with_beginning(context), continuation);
    return {{"log_likelihood", score.log_likelihood},
            {"is_greedy", score.is_greedy},
            {"tokens", score.num_tokens}};
  }

  Json choices(const Question& question) {
    const data::Question asked =
        data::question_of(question.json.dump(), question.where, decoder_.vocab_size());
    std::vector<double> scores;
    for (const data::Choice& choice : asked.choices) {
      scores.push_back(score_continuation(decoder_, asked.context, choice.tokens).log_likelihood);
    }
    const data::Verdict verdict = data::verdict_of(asked, scores);
    return {{"log_likelihoods", scores},
            {"right", verdict.right},
            {"right_by_bytes", verdict.right_by_bytes}};
  }

  Json text(const Question& question) {
    const auto listed = listed_ids(question, "text");
    const std::string text =
        listed ? model_.text().exact_text(*listed) : string_of(question, "text");
    const Ids ids = listed ? *listed : model_.text().ids(text);
    const Score score = score_text(decoder_, model_.first_token(), ids);
    return {{"log_likelihood", score.log_likelihood},
            {"tokens", score.num_tokens},
            {"bytes", text.size()}};
  }

  Json generation(const Question& question) {
    GenerationOptions options{.for_terminal = false};
    options.sampling = {
        .num_tokens = number_of<std::int64_t>(
            question, "max_tokens", std::min(kUsualNewTokens, decoder_.context() / 2), 1, 1 << 30),
        .temperature = number_of<double>(question, "temperature", 0.0, 0.0, 100.0),
        .top_k = number_of<std::int64_t>(question, "top_k", 0, 0, 1 << 30),
        .top_p = number_of<double>(question, "top_p", 1.0, 0.0, 1.0),
        .seed = static_cast<std::uint64_t>(
            number_of<std::int64_t>(question, "seed", 0, 0, std::int64_t{1} << 53))};
    const Json until = question.json.value("until", Json::array());
    for (const Json& stop : until.is_array() ? until : Json::array({until})) {
      if (!stop.is_string()) question.fail("\"until\" isn't a list of texts.");
      options.stops.push_back(stop.get<std::string>());
    }
    const auto listed = listed_ids(question, "prompt");
    Ids prompt =
        listed ? with_beginning(*listed) : model_.prompt_ids(string_of(question, "prompt"));
    // What is generated must fit after it, as harnesses cut it.
    const std::int64_t room = decoder_.context() - options.sampling.num_tokens;
    if (room < 1) {
      question.fail(fmt::format(
          "\"max_tokens\" is {}, and the context has {} tokens: nothing of the prompt would be "
          "left. Ask for fewer, or set a longer --context.",
          options.sampling.num_tokens, decoder_.context()));
    }
    if (std::ssize(prompt) > room) prompt.erase(prompt.begin(), prompt.end() - room);
    const GeneratedText result = generate_text(model_, decoder_, prompt, options);
    return {{"text", result.text}, {"tokens", result.num_tokens}, {"end", name_of(result.end)}};
  }

  Json rendered(const Question& question) {
    if (!format_) {
      if (model_.tokenizer_folder().empty()) {
        question.fail("this model has no tokenizer, so no chat template.");
      }
      const auto tokenizer =
          tokenizer::Tokenizer::open(model_.tokenizer_folder(), model_.added_tokens());
      format_.emplace(model_.tokenizer_folder(), tokenizer, data::ChatOptions{});
    }
    Json conversation = question.json;
    conversation.erase("add_generation_prompt");
    const auto asked = question.json.find("add_generation_prompt");
    const bool prompt = asked == question.json.end() || *asked == true;
    return {{"prompt", format_->prompt_text(data::read_conversation(conversation.dump()), prompt)}};
  }

  const TextModel& model_;
  Decoder& decoder_;
  std::optional<data::ChatFormat> format_;
};

}  // namespace

void answer(const ScoringRequest& request) {
  TextModel model(request.model, TextModel::Text::kWhenNeeded);
  Questions questions(request);
  InOrder<std::string> answers(
      [&](std::size_t, const std::string& line) { request.on_answer(line); });
  const auto use = [&](const sharding::Rank& rank, Decoder& decoder) {
    Answerer answer(model, decoder);
    const bool together = model.ranks_work_together();
    for (std::size_t own = 0;; ++own) {
      const std::size_t number = together ? own : questions.take();
      end_if_asked("before all questions were answered");
      const std::optional<Question> question =
          questions.get(number, together ? model.num_ranks_here() : 1);
      if (!question) return;
      const Json line = answer(*question);
      if (together && rank.rank != 0) continue;
      answers.add(number, line.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
  };
  const std::int64_t longest = model.longest_context();
  if (request.context > longest) {
    throw UsageError(
        "--context is {}, but the model reads {} tokens at most (model.max_seq_length, which is "
        "max_position_embeddings of a folder).",
        request.context, longest);
  }
  const std::int64_t context = request.context > 0 ? request.context : kUsualContext;
  model.run(std::min(context, longest), use, request.on_note);
}

}  // namespace sherd::engine
