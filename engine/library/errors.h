/// Turns Sherd's own errors into those of the library's users (include/sherd/error.h).
#pragma once

#include <exception>

#include "core/error.h"
#include "sherd/error.h"

namespace sherd::library {

/// Throws the user's error for `error`, with the same sentence.
[[noreturn]] void throw_for_user(const Error& error);

/// The result of `work`. What isn't a sherd::Error, such as an exception of a user's callback, passes
/// unchanged.
template <class Work>
auto for_user(Work&& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw_for_user(error);
  }
}

}  // namespace sherd::library
