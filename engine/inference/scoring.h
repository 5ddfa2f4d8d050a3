/// Questions to a trained model, a line each, and its answers in the same order: what an evaluation harness
/// asks of one.
///
///   {"context": T, "continuation": T}       {"log_likelihood": x, "is_greedy": b, "tokens": n}
///   {"text": T}                             {"log_likelihood": x, "tokens": n, "bytes": n}
///   {"prompt": T, "until": [...], "max_tokens": n, "temperature": x, "top_k": n, "top_p": x, "seed": n}
///                                           {"text": s, "tokens": n, "end": "length" | "stop" | "end"}
///
///   {"messages": [...], "add_generation_prompt": b}
///                                           {"prompt": s}, by the model's chat template
///
/// T is a text or a list of token ids. Log-likelihoods are sums of natural logarithms. A context and its
/// continuation are encoded together, so that a word that both share is cut where the context ends;
/// spaces at the end of a context count as the continuation's. Of a prompt nothing else must be given; 256 tokens and
/// temperature 0 are taken otherwise. What stands before a document (a beginning token) isn't added to a text that
/// begins with it, as templates' do.
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <string>

#include "engine/inference/evaluate.h"

namespace sherd::engine {

struct ScoringRequest {
  TrainedModelRequest model;
  std::int64_t context =
      0;  ///< tokens of a text at most; 0: 2,048, or what the model knows if less
  std::istream* questions = nullptr;
  std::string name;  ///< of where they come from, for messages: "requests.jsonl"
  std::function<void(const std::string&)> on_note{};
  std::function<void(const std::string& line)> on_answer;  ///< one JSON object, no line break
};

/// Until the questions end. With several ranks they are dealt to ranks, as they come.
/// Errors   DataError for a line that is none of these; UsageError for text without ids, or too long, and for a
///          context that is longer than what the model reads.
void answer(const ScoringRequest& request);

}  // namespace sherd::engine
