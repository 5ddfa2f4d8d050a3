/// Answers questions to a trained model, one per line, in the same order: the requests of
/// evaluation harnesses.
///
///   {"context": T, "continuation": T}       {"log_likelihood": x, "is_greedy": b, "tokens": n}
///   {"text": T}                             {"log_likelihood": x, "tokens": n, "bytes": n}
///   {"prompt": T, "until": [...], "max_tokens": n, "temperature": x, "top_k": n, "top_p": x,
///    "seed": n}                             {"text": s, "tokens": n,
///                                            "end": "length" | "stop" | "end"}
///
///   {"context": [ids], "choices": [[ids], ...], "bytes": [...], "answer": n}
///                                           {"log_likelihoods": [...], "right": b,
///                                            "right_by_bytes": b}
///
/// is a line of a file of questions (engine/data/task.h); its header is answered by itself.
///
///   {"messages": [...], "add_generation_prompt": b}
///                                           {"prompt": s}, by the model's chat template
///
/// T is a text or a list of token ids. Log-likelihoods are sums of natural logarithms. A context
/// and its continuation are encoded together, so a word that both share is split where the context
/// ends. Spaces at the end of a context belong to the continuation. Only "prompt" is required for
/// generation; the defaults are 256 tokens and temperature 0. A beginning-of-document token isn't
/// added to a text that already begins with it, as texts from templates do.
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <string>

#include "engine/inference/evaluate.h"

namespace sherd::engine {

struct ScoringRequest {
  TrainedModelRequest model;
  std::int64_t context = 0;  ///< most tokens per text; 0: 2,048, or the model's maximum if less
  std::istream* questions = nullptr;
  std::string name;  ///< of the source, for messages: "requests.jsonl"
  std::function<void(const std::string&)> on_note{};
  std::function<void(const std::string& line)> on_answer;  ///< one JSON object, no line break
};

/// Answers until the questions end. With several ranks, questions are distributed as they arrive.
/// Errors   Interrupted; DataError for a line that is none of these; UsageError for text without ids or too
///          long, and for a context that is longer than the model supports.
void answer(const ScoringRequest& request);

}  // namespace sherd::engine
