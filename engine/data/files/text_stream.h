/// Reads the bytes of a text from a plain file, .gz, .zst, or standard input ("-").
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace sherd::data {

class TextStream {
 public:
  virtual ~TextStream() = default;
  /// Reads up to `size` bytes into `to`; returns 0 at the end.
  /// Errors   DataError: unreadable, or packed data that are damaged or cut short.
  virtual std::size_t read(char* to, std::size_t size) = 0;
};

/// Chooses the format by the name's extension.
/// Errors   DataError if it can't be opened.
std::unique_ptr<TextStream> open_text_stream(const std::string& path);

/// The name without .gz or .zst.
std::string unpacked_name(const std::string& path);

}  // namespace sherd::data
