/// Compresses texts as other programs do.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <string>

namespace sherd::test {

inline std::string gzip(const std::string& text) {
  std::string packed(text.size() + 1000, 0);
  z_stream state{};
  deflateInit2(&state, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(packed.data());
  state.avail_out = static_cast<uInt>(packed.size());
  deflate(&state, Z_FINISH);
  packed.resize(state.total_out);
  deflateEnd(&state);
  return packed;
}

inline std::string zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), 0);
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

}  // namespace sherd::test
