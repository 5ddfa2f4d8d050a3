#include "engine/data/chat/shared_text.h"

#include <algorithm>

namespace sherd::data {

using templates::MarkedText;

bool SharedText::has(std::size_t at, std::string_view text) const {
  if (at > size() || size() - at < text.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((*this)[at + i] != text[i]) return false;
  }
  return true;
}

std::size_t SharedText::find(std::string_view text, std::size_t from) const {
  for (std::size_t at = from; at + text.size() <= size(); ++at) {
    if (has(at, text)) return at;
  }
  return std::string::npos;
}

MarkedText SharedText::whole() const {
  MarkedText text;
  if (shared_) text = shared_->part(0, shared_bytes_);
  text.append(tail_);
  return text;
}

std::size_t CommonPrefix::operator()(const SharedText& a, const SharedText& b) {
  const std::size_t both_shared = std::min(a.shared_bytes(), b.shared_bytes());
  std::size_t common =
      both_shared == 0 ? 0 : std::min(both_shared, of_shared(a.shared(), b.shared()));
  if (common < both_shared) return common;
  const std::size_t most = std::min(a.size(), b.size());
  while (common < most && a[common] == b[common]) ++common;
  return common;
}

std::size_t CommonPrefix::of_shared(const MarkedText* a, const MarkedText* b) {
  if (a == b) return a->size();
  const auto [known, is_new] = known_.emplace(std::minmax(a, b), 0);
  if (is_new) {
    const std::string& x = a->bytes;
    const std::string& y = b->bytes;
    const auto most = static_cast<std::ptrdiff_t>(std::min(x.size(), y.size()));
    known->second = static_cast<std::size_t>(
        std::mismatch(x.begin(), x.begin() + most, y.begin()).first - x.begin());
  }
  return known->second;
}

}  // namespace sherd::data
