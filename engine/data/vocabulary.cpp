// The characters of texts that aren't opened as data yet.
#include <algorithm>

#include "engine/data/characters.h"
#include "engine/data/dataset.h"
#include "engine/data/texts.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace sherd::data {
namespace {

void add_texts(const std::string& path, const std::string& key, const std::string& field,
               MappedFiles& all) {
  if (!path.empty()) std::ranges::move(open_texts(path, key, field).texts, std::back_inserter(all));
}

}  // namespace

std::vector<char32_t> vocabulary_of_all(const std::vector<DataOptions>& texts) {
  MappedFiles all;
  for (const DataOptions& options : texts) {
    add_texts(options.path, options.path_key, options.field, all);
    add_texts(options.validation_path, options.validation_key, options.field, all);
  }
  return vocabulary_of(all, "data", texts[0].vocab_size, {});
}

std::int64_t size_of_tokenizer(const std::string& folder) {
  return tokenizer::Tokenizer::open(folder)->vocab_size();
}

std::int64_t num_distinct_characters(const std::string& path) {
  const DataOptions options{.path = path};
  MappedFiles all;
  add_texts(path, options.path_key, options.field, all);
  const std::vector<bool> seen = characters_of(all);
  return std::count(seen.begin(), seen.end(), true);
}

}  // namespace sherd::data
