/// A trained model for text input and output, one text at a time on each rank.
///
/// In several processes all ranks work on one text after the other.
///
/// A cache of keys and values, or of latents (kernels/kv_cache.h), limits the cost of each token to
/// a pass over itself.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/data/token_text.h"
#include "engine/generate/decoder.h"
#include "engine/inference/same_vocabulary.h"
#include "engine/inference/trained_model.h"

namespace sherd::engine {

class TextModel {
 public:
  /// When the tokenizer is opened: at once, or when text is first needed. Token ids need no
  /// tokenizer.
  enum class Text { kNow, kWhenNeeded };

  /// Errors   as evaluate_checkpoint.
  explicit TextModel(const TrainedModelRequest& request, Text when = Text::kNow);

  /// Errors   with kWhenNeeded, those of a folder without a tokenizer.
  const data::TokenText& text() const;
  /// The prompt's ids, after the tokenizer's beginning-of-document tokens unless it begins with
  /// them; at least one id.
  std::vector<std::int32_t> prompt_ids(const std::string& prompt) const;
  /// The token that a text begins with if nothing precedes it: the tokenizer's beginning token,
  /// else the model's end token, else 0.
  std::int32_t first_token() const;
  bool is_end(std::int32_t token) const;

  /// The folder of the model's tokenizer and chat template; empty: its tokens are bytes, characters
  /// or ids.
  const std::string& tokenizer_folder() const { return trained_.recipe.data.tokenizer; }
  /// The tokens that its run has added.
  const std::vector<std::string>& added_tokens() const {
    return trained_.recipe.model.add_special_tokens;
  }

  ModelVocabulary vocabulary() const { return vocabulary_of(trained_); }

  /// Maximum tokens of a text: model.max_seq_length, for a folder from its config.json.
  std::int64_t longest_context() const;
  /// Context length for a conversation: a checkpoint's training length, or a folder's maximum.
  std::int64_t usual_context() const;
  /// The value of --context; 0: the usual one.
  /// Errors   UsageError if it is longer than the longest
  std::int64_t context_of(std::int64_t asked) const;

  using Use = std::function<void(const sharding::Rank& rank, Decoder& decoder)>;
  /// Plans memory for texts of at most `positions` tokens, loads the weights and runs `use` on
  /// every rank. `on_note` receives notes for the user, once, before that.
  void run(std::int64_t positions, const Use& use,
           const std::function<void(const std::string&)>& on_note);

  /// True if no rank has room for all parameters: all ranks work on the same text and gather each
  /// unit for each token. Otherwise each rank works independently. Known in `run`.
  bool ranks_work_together() const { return trained_.options.placement.parameters_sharded(); }
  int num_ranks_here() const;  ///< of this process

 private:
  void fit_shape(std::int64_t positions);
  void place_parameters();

  TrainedModel trained_;
  std::shared_ptr<const Machine> machine_;
  mutable std::mutex opening_;
  mutable std::unique_ptr<const data::TokenText> text_;
  std::vector<std::int32_t> end_tokens_;
};

}  // namespace sherd::engine
