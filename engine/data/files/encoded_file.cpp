#include "engine/data/files/encoded_file.h"

#include <string_view>
#include <utility>

#include "core/error.h"
#include "engine/data/tokenizer/encode_each.h"

namespace sherd::data {
namespace {

std::unique_ptr<const TokenFile> encode_file(const MappedFile& file, tokenizer::Encoder& encoder) {
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  std::vector<std::int32_t> ids;
  try {
    encoder.encode(text, tokenizer::SpecialTokens::kAsText, ids);
  } catch (const DataError& error) {
    throw DataError("{}: {}; convert the file to UTF-8, or leave it out.", file.path(),
                    error.what());
  }
  ids.shrink_to_fit();
  return make_id_file(file.path(), std::move(ids));
}

}  // namespace

std::shared_ptr<const tokenizer::Tokenizer> open_tokenizer(
    const std::string& folder, const std::vector<std::string>& special_tokens,
    std::int64_t vocab_size) {
  auto tokenizer = tokenizer::Tokenizer::open(folder, special_tokens);
  if (tokenizer->vocab_size() > vocab_size) {
    throw DataError(
        "{}: the tokenizer has {} ids, but model.vocab_size is {}; give the model's own tokenizer, "
        "or "
        "a model of {} ids or more.",
        folder, tokenizer->vocab_size(), vocab_size, tokenizer->vocab_size());
  }
  return tokenizer;
}

std::vector<std::unique_ptr<const TokenFile>> encode_files(
    const std::vector<std::shared_ptr<const MappedFile>>& files,
    const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer) {
  std::vector<std::unique_ptr<const TokenFile>> encoded(files.size());
  tokenizer::encode_each(files.size(), tokenizer, [&](std::size_t i, tokenizer::Encoder& encoder) {
    encoded[i] = encode_file(*files[i], encoder);
  });
  return encoded;
}

}  // namespace sherd::data
