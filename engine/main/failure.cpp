#include "engine/main/failure.h"

#include <algorithm>
#include <new>

#include "core/error.h"
#include "engine/recipe/recipe.h"

namespace sherd::main {
namespace {

constexpr int kNoMemory = 5;  // a TrainingError's

// One line, whatever a file name or a library's message holds.
std::string one_line(std::string message) {
  std::replace_if(
      message.begin(), message.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; },
      ' ');
  return message;
}

}  // namespace

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const engine::RecipeErrors& errors) {
    Failure failure{errors.exit_code()};
    for (const std::string& line : errors.lines()) failure.lines.push_back(one_line(line));
    return failure;
  } catch (const Error& failed) {
    return {failed.exit_code(), {one_line(failed.what())}};
  } catch (const std::bad_alloc&) {
    return {
        kNoMemory,
        {"no memory is left on this machine, or under this process's limit (ulimit -v), for what "
         "the program needs in addition to the plan; sherd plan shows what a recipe needs."}};
  } catch (const std::exception& unexpected) {
    return {kUnexpected, {one_line(unexpected.what())}};
  }
}

}  // namespace sherd::main
