#include "sherd/tokenizer.h"

#include <mutex>

#include "engine/data/tokenizer/tokenizer.h"
#include "engine/library/errors.h"

namespace sherd::v0 {

struct Tokenizer::Parts {
  explicit Parts(const std::string& folder)
      : opened(tokenizer::Tokenizer::open(folder)), encoder(opened) {}

  const std::shared_ptr<const tokenizer::Tokenizer> opened;
  std::mutex mutex;  // an encoder is for one thread
  tokenizer::Encoder encoder;
};

Tokenizer::Tokenizer(const std::string& folder)
    : parts_(library::for_user([&] { return std::make_unique<Parts>(folder); })) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&& other) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&& other) noexcept = default;

std::vector<std::int32_t> Tokenizer::encode(const std::string& text,
                                            const EncodeOptions& options) const {
  return library::for_user([&] {
    std::vector<std::int32_t> ids;
    if (options.add_beginning) {
      const auto before = parts_->opened->before_document();
      ids.assign(before.begin(), before.end());
    }
    const std::lock_guard lock(parts_->mutex);
    parts_->encoder.encode(text,
                           options.special_tokens ? tokenizer::SpecialTokens::kAsTokens
                                                  : tokenizer::SpecialTokens::kAsText,
                           ids);
    return ids;
  });
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids, bool skip_special) const {
  return library::for_user([&] { return parts_->opened->decode(ids, skip_special); });
}

std::int64_t Tokenizer::vocab_size() const {
  return parts_->opened->vocab_size();
}
std::optional<std::int32_t> Tokenizer::id_of(const std::string& token) const {
  return parts_->opened->id_of(token);
}
std::string Tokenizer::token_of(std::int32_t id) const {
  return std::string(parts_->opened->token_of(id));
}
std::optional<std::int32_t> Tokenizer::beginning() const {
  return parts_->opened->beginning();
}
std::optional<std::int32_t> Tokenizer::end() const {
  return parts_->opened->end();
}

}  // namespace sherd::v0
