/// A trained model that text goes into and comes out of, one text at a time on each rank.
///
/// A cache of keys and values (kernels/kv_cache.h) makes each token cost a pass over itself.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/data/token_text.h"
#include "engine/generate/decoder.h"
#include "engine/inference/trained_model.h"

namespace sherd::engine {

class TextModel {
 public:
  /// When the tokenizer is opened: at once, or where text is first asked for. Ids need none.
  enum class Text { kNow, kWhenNeeded };

  /// Errors   as evaluate_checkpoint.
  explicit TextModel(const TrainedModelRequest& request, Text when = Text::kNow);

  /// Errors   those of a folder without tokenizer, where it was left for later.
  const data::TokenText& text() const;
  /// Behind what the tokenizer puts before a document, unless it begins with that; at least one id.
  std::vector<std::int32_t> prompt_ids(const std::string& prompt) const;
  /// The token that a text begins with where nothing stands before it: the tokenizer's beginning, else the
  /// model's end, else 0.
  std::int32_t first_token() const;
  bool is_end(std::int32_t token) const;

  /// The folder of the model's tokenizer and chat template; empty: its tokens are bytes, characters or ids.
  const std::string& tokenizer_folder() const { return trained_.recipe.data.tokenizer; }
  /// Those that its run has added to them.
  const std::vector<std::string>& added_tokens() const {
    return trained_.recipe.model.add_special_tokens;
  }

  /// Tokens of a text at most: model.max_seq_length, which is what a folder's config.json says.
  std::int64_t longest_context() const;
  /// Those that a conversation is kept in: what a checkpoint was trained with, or all that a folder reads.
  std::int64_t usual_context() const;

  using Use = std::function<void(const sharding::Rank& rank, Decoder& decoder)>;
  /// Plans memory for texts of at most `positions` tokens, loads the weights and runs `use` on every
  /// rank. `on_note` is told what is worth knowing of it, once, before.
  void run(std::int64_t positions, const Use& use,
           const std::function<void(const std::string&)>& on_note);

  /// No rank has room for all parameters: all ranks work on the same text and gather each unit for each
  /// token. Otherwise each works for itself. Known in `run`.
  bool ranks_work_together() const { return trained_.options.placement.parameters_sharded(); }

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
