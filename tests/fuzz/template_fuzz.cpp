// An arbitrary chat template, and a conversation for it: rendered, or refused in one sentence. Two
// bytes of 0xff part them. The budget is a hundredth of the usual one, so that an input that uses it up is found in a
// second; what isn't counted shows as an input that takes 20 s, or a process above its limit of memory (run.sh).
#include "engine/data/template/template.h"

#include <string_view>

#include "engine/data/template/json_value.h"
#include "tests/fuzz/fuzz.h"

namespace sherd::fuzz {
namespace {

void use(Bytes bytes) {
  const std::string all(bytes.rest());
  const std::size_t end = all.find("\xff\xff");
  const std::string source = all.substr(0, end);
  std::string json =
      R"({"messages": [{"role": "user", "content": " a"}, {"role": "assistant", "content": "b"}]})";
  if (end != std::string::npos) json = all.substr(end + 2);
  templates::Value variables;
  try {
    variables = templates::value_of_json(json, templates::kFromData);
  } catch (const templates::Problem&) {
    return;
  }
  if (!variables.dict()) return;
  const auto parsed = templates::Template::parse(source, "template");
  const templates::Limits limits{.steps = 1'000'000, .bytes = 8 << 20, .depth = 300};
  templates::Used used;
  const auto respected = [&] {
    demand(used.steps <= limits.steps, "steps are within the budget");
    demand(used.bytes <= limits.bytes, "bytes are within the budget");
    demand(used.depth <= limits.depth, "depth is within the budget");
  };
  templates::MarkedText text;
  try {
    text = parsed.render(*variables.dict(), {}, limits, &used);
  } catch (...) {
    respected();
    throw;
  }
  respected();
  demand(std::ssize(text.bytes) <= limits.bytes, "the text is within the budget");
  demand(text.marks.size() == text.bytes.size(), "every byte has a mark");
}

}  // namespace
}  // namespace sherd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sherd::fuzz::expect_answer([&] { sherd::fuzz::use({data, size}); });
  return 0;
}
