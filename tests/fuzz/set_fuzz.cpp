// Settings: taken, printed and read again, or refused in one sentence.
#include "tests/fuzz/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sherd;
  fuzz::expect_answer([&] {
    const auto recipe = fuzz::recipe_with({reinterpret_cast<const char*>(data), size});
    engine::resolve_recipe({.path = "again.yaml", .text = recipe.yaml()});
  });
  return 0;
}
