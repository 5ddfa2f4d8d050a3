#include "engine/inference/same_vocabulary.h"

#include <algorithm>

#include "core/error.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/huggingface/model_files.h"

namespace sherd::engine {
namespace {

using tokenizer::Tokenizer;

bool has_tokenizer(const Recipe& recipe) {
  const std::string& folder = recipe.data.tokenizer;
  return !folder.empty() &&
         checkpoint::exists(checkpoint::posix_disk(), folder + "/tokenizer.json");
}

std::shared_ptr<const Tokenizer> tokenizer_of(const Recipe& recipe) {
  return Tokenizer::open(recipe.data.tokenizer, recipe.model.add_special_tokens);
}

}  // namespace

ModelVocabulary vocabulary_of(const TrainedModel& model) {
  return {model.path, model.recipe, model.vocabulary};
}

void require_same_vocabulary(const ModelVocabulary& first, const ModelVocabulary& other,
                             std::string_view why) {
  if (first.characters != other.characters) {
    throw UsageError("{}: its characters aren't those of {}; {}.", other.path, first.path, why);
  }
  if (!has_tokenizer(first.recipe) || !has_tokenizer(other.recipe)) return;
  const bool are_files_equal = huggingface::have_same_tokenizer(
      checkpoint::posix_disk(), first.recipe.data.tokenizer, other.recipe.data.tokenizer);
  if (are_files_equal &&
      first.recipe.model.add_special_tokens == other.recipe.model.add_special_tokens) {
    return;
  }
  // Versions of the library write the same tokens differently.
  const auto a = tokenizer_of(first.recipe), b = tokenizer_of(other.recipe);
  const auto size = static_cast<std::int32_t>(std::max(a->vocab_size(), b->vocab_size()));
  for (std::int32_t id = 0; id < size; ++id) {
    const std::string_view of_a = id < a->vocab_size() ? a->token_of(id) : "";
    const std::string_view of_b = id < b->vocab_size() ? b->token_of(id) : "";
    if (of_a == of_b) continue;
    throw UsageError("{}: token {} isn't that of {}; {}.", other.path, id, first.path, why);
  }
}

}  // namespace sherd::engine
