#include "engine/data/files/joined_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace sherd::data {
namespace {

class JoinedFile final : public TokenFile {
 public:
  JoinedFile(const std::vector<Piece>& pieces, std::optional<std::int32_t> separator)
      : path_(fmt::format("{} joined pieces of text", pieces.size())),
        separator_(separator.value_or(0)) {
    places_.reserve(pieces.size());
    for (const Piece& piece : pieces) {
      SHERD_CHECK(piece.count > 0, "an empty piece of {}", piece.file->path());
      places_.push_back({piece, num_tokens_});
      num_tokens_ += piece.count;
      const bool last = places_.size() == pieces.size();
      if (separator && !last && last_token(piece) != *separator) ++num_tokens_;
    }
  }

  const std::string& path() const override { return path_; }
  std::int64_t num_tokens() const override { return num_tokens_; }

  void read(std::int64_t first, std::int64_t count, std::int32_t* ids) const override {
    check_range(*this, first, count);
    const auto begins_after = [](std::int64_t token, const Place& place) {
      return token < place.begin;
    };
    auto place = std::upper_bound(places_.begin(), places_.end(), first, begins_after);
    if (place != places_.begin()) --place;
    for (const std::int64_t end = first + count; first < end; ++place) {
      const Piece& piece = place->piece;
      const std::int64_t skipped = first - place->begin;
      const std::int64_t taken =
          std::min(std::max<std::int64_t>(piece.count - skipped, 0), end - first);
      if (taken > 0) piece.file->read(piece.first + skipped, taken, ids);
      first += taken;
      ids += taken;
      const bool separated = place + 1 != places_.end() && first < (place + 1)->begin;
      if (first < end && separated) {
        *ids++ = separator_;
        ++first;
      }
    }
  }

 private:
  struct Place {
    Piece piece;
    std::int64_t begin;  ///< the piece's first token in the whole
  };

  static std::int32_t last_token(const Piece& piece) {
    std::int32_t id = 0;
    piece.file->read(piece.first + piece.count - 1, 1, &id);
    return id;
  }

  std::string path_;
  std::int32_t separator_;
  std::vector<Place> places_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace

std::unique_ptr<const TokenFile> join(const std::vector<Piece>& pieces,
                                      std::optional<std::int32_t> separator) {
  return std::make_unique<JoinedFile>(pieces, separator);
}

}  // namespace sherd::data
