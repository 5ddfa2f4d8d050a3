/// The text of an error, for tests of messages.
#pragma once

#include <string>

namespace sherd::test {

/// The message of the `ErrorType` that `call` throws; "(no error)" if it throws nothing.
template <class ErrorType, class Call>
std::string error_text(Call&& call) {
  try {
    call();
  } catch (const ErrorType& error) {
    return error.what();
  }
  return "(no error)";
}

}  // namespace sherd::test
