/// A text whose first bytes are a prefix of another text, shared by many. It holds a rendered
/// prefix of a conversation (templates::Beginnings) without copying what comes before its last
/// message.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/data/template/marked_text.h"

namespace sherd::data {

class SharedText {
 public:
  SharedText() = default;
  /// Shares nothing.
  explicit SharedText(templates::MarkedText text) : tail_(std::move(text)) {}
  SharedText(std::shared_ptr<const templates::MarkedText> shared, std::size_t bytes,
             templates::MarkedText tail)
      : shared_(std::move(shared)), shared_bytes_(bytes), tail_(std::move(tail)) {}

  std::size_t size() const { return shared_bytes_ + tail_.size(); }
  char operator[](std::size_t i) const {
    return i < shared_bytes_ ? shared_->bytes[i] : tail_.bytes[i - shared_bytes_];
  }
  bool has(std::size_t at, std::string_view text) const;
  std::size_t find(std::string_view text, std::size_t from) const;
  templates::MarkedText whole() const;

  const templates::MarkedText* shared() const { return shared_.get(); }
  std::size_t shared_bytes() const { return shared_bytes_; }
  const templates::MarkedText& tail() const { return tail_; }

 private:
  std::shared_ptr<const templates::MarkedText> shared_;
  std::size_t shared_bytes_ = 0;
  templates::MarkedText tail_;
};

/// Length of the common prefix of two texts. Each pair of shared texts is compared only once.
class CommonPrefix {
 public:
  std::size_t operator()(const SharedText& a, const SharedText& b);

 private:
  std::size_t of_shared(const templates::MarkedText* a, const templates::MarkedText* b);
  std::map<std::pair<const templates::MarkedText*, const templates::MarkedText*>, std::size_t>
      known_;
};

}  // namespace sherd::data
