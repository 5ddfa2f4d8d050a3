#include "engine/inference/end_of_text.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "engine/data/chat/chat_format.h"
#include "engine/huggingface/end_tokens.h"

namespace sherd::engine {
namespace {

using Ids = std::vector<std::int32_t>;

std::shared_ptr<const tokenizer::Tokenizer> tokenizer_of(const Recipe& recipe) {
  const std::string& folder = recipe.data.tokenizer;
  std::error_code error;
  if (folder.empty() || !std::filesystem::exists(folder + "/tokenizer.json", error)) return nullptr;
  return tokenizer::Tokenizer::open(folder, recipe.model.add_special_tokens);
}

Ids ends_by_folder(const TrainedModel& trained) {
  auto& disk = checkpoint::posix_disk();
  const std::string folder = trained.checkpoint ? kept_beside(*trained.checkpoint) : trained.path;
  Ids ends = huggingface::end_tokens(disk, folder);
  if (ends.empty() && !trained.base.empty()) ends = huggingface::end_tokens(disk, trained.base);
  return ends;
}

Ids ends_by_tokenizer(const TrainedModel& trained, const tokenizer::Tokenizer& tokenizer) {
  if (const auto end = tokenizer.end()) return {*end};
  Ids ends = huggingface::end_tokens(checkpoint::posix_disk(), trained.recipe.data.tokenizer);
  std::erase_if(ends, [&](std::int32_t id) { return id >= trained.recipe.model.vocab_size; });
  return ends;
}

}  // namespace

Ids EndOfText::all() const {
  Ids ids = of_text;
  if (answers_end_elsewhere()) ids.insert(ids.begin(), *of_answer);
  return ids;
}

bool EndOfText::answers_end_elsewhere() const {
  return of_answer && std::ranges::find(of_text, *of_answer) == of_text.end();
}

Ids end_of_text(const TrainedModel& trained) {
  const Ids ends = ends_by_folder(trained);
  if (!ends.empty()) return ends;
  try {
    const auto tokenizer = tokenizer_of(trained.recipe);
    return tokenizer ? ends_by_tokenizer(trained, *tokenizer) : Ids();
  } catch (const DataError&) {  // ids need none; whoever has a text opens it again, and says this
    return {};
  }
}

EndOfText ends_of(const TrainedModel& trained) {
  EndOfText ends{
      .of_text = ends_by_folder(trained), .of_answer = {}, .answer_token = {}, .beginning = {}};
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  try {
    tokenizer = tokenizer_of(trained.recipe);
  } catch (const DataError&) {  // weights need none
  }
  if (!tokenizer) return ends;
  if (ends.of_text.empty()) ends.of_text = ends_by_tokenizer(trained, *tokenizer);
  ends.beginning = tokenizer->beginning();
  try {
    const data::ChatFormat format(trained.recipe.data.tokenizer, tokenizer, {});
    tokenizer::Encoder encoder(tokenizer);
    ends.of_answer = format.end_of_answer(encoder);
  } catch (
      const DataError&) {  // no template, or one that isn't known here: it is exported all the same
  }
  if (ends.of_answer) ends.answer_token = std::string(tokenizer->token_of(*ends.of_answer));
  return ends;
}

}  // namespace sherd::engine
