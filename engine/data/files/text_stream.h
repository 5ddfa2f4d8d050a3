/// Bytes of a text, whatever it is packed in: a plain file, .gz, .zst, or standard input ("-").
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace sherd::data {

class TextStream {
 public:
  virtual ~TextStream() = default;
  /// Up to `size` bytes into `to`; 0 at the end.
  /// Errors   DataError: unreadable, or packed bytes that are damaged or cut short.
  virtual std::size_t read(char* to, std::size_t size) = 0;
};

/// By the end of the name.
/// Errors   DataError if it can't be opened.
std::unique_ptr<TextStream> open_text_stream(const std::string& path);

/// The name without .gz or .zst.
std::string unpacked_name(const std::string& path);

}  // namespace sherd::data
