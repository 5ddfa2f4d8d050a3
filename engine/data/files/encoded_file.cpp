#include "engine/data/files/encoded_file.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/thread.h"

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

std::shared_ptr<const tokenizer::Tokenizer> open_tokenizer(const std::string& folder,
                                                           std::int64_t vocab_size) {
  auto tokenizer = tokenizer::Tokenizer::open(folder);
  if (tokenizer->vocab_size() > vocab_size) {
    throw DataError(
        "{}: the tokenizer has {} ids, but model.vocab_size is {}; raise it to {} or more.", folder,
        tokenizer->vocab_size(), vocab_size, tokenizer->vocab_size());
  }
  return tokenizer;
}

std::vector<std::unique_ptr<const TokenFile>> encode_files(
    const std::vector<std::shared_ptr<const MappedFile>>& files,
    const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer) {
  std::vector<std::unique_ptr<const TokenFile>> encoded(files.size());
  std::vector<std::exception_ptr> errors(files.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    std::optional<tokenizer::Encoder> encoder;
    for (std::size_t i = next++; i < files.size(); i = next++) {
      try {
        if (!encoder) encoder.emplace(tokenizer);
        encoded[i] = encode_file(*files[i], *encoder);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  const std::size_t num_threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1,
                                                          std::max<std::size_t>(files.size(), 1));
  {
    std::vector<std::jthread> helpers;
    try {
      for (std::size_t i = 1; i < num_threads; ++i) helpers.emplace_back(work);
    } catch (const std::system_error& refused) {
      next = files.size();  // those that have started begin no other file
      throw_thread_refused("that encodes text", refused);
    }
    work();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return encoded;
}

}  // namespace sherd::data
