/// Text from a trained model: a checkpoint, a run's folder, or a Hugging Face folder.
///
///   const sherd::GeneratedText text = sherd::generate("runs/quickstart", "template<typename ");
///   std::puts(text.text.c_str());
///
/// Each call loads the model. Pass several prompts at once rather than one by one. The same seed
/// gives the same text as `sherd sample`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sherd/export.h"

namespace sherd::SHERD_ABI {

struct GenerationOptions {
  std::int64_t num_tokens = 200;     ///< at most
  double temperature = 0.8;          ///< 0: always the likeliest token
  std::int64_t top_k = 0;            ///< draw among the k likeliest; 0: all tokens
  double top_p = 1.0;                ///< draw among the likeliest that reach p together
  std::uint64_t seed = 0;            ///< each prompt draws with the same seed
  std::vector<std::string> stops{};  ///< the text ends before the first of these
  bool ignore_end_tokens = false;
  std::int64_t ranks = 1;
  bool average = false;  ///< use the average of the weights in a checkpoint
  std::vector<std::string>
      sets{};  ///< "key=value" for the model's recipe, such as run.num_threads=2
  /// Asked after each token, by several threads; false ends the text there.
  std::function<bool()> wants_more{};
};

struct GeneratedText {
  std::string text{};  ///< after the prompt
  std::int64_t num_tokens = 0;
  std::string end{};  ///< "length", "stop" or "end" (a token that ends a text)
};

/// Pieces of the text as it comes; on the calling thread.
using OnText = std::function<void(std::string_view)>;

/// Errors   DataError for a model that can't be read; UsageError for a prompt that the vocabulary
///          can't express, or a model that doesn't fit
SHERD_API GeneratedText generate(const std::string& model, const std::string& prompt,
                                 const GenerationOptions& options = {}, const OnText& on_text = {});
/// One text for each prompt. Ranks divide the prompts.
SHERD_API std::vector<GeneratedText> generate(const std::string& model,
                                              const std::vector<std::string>& prompts,
                                              const GenerationOptions& options = {});

}  // namespace sherd::SHERD_ABI
