// A chat template that anybody wrote, and a conversation for it: rendered, or refused in one sentence. Two
// bytes of 0xff part them.
// Rooms: core engine/data/template engine/data/utf8
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
  const templates::MarkedText text = parsed.render(*variables.dict());
  demand(text.marks.size() == text.bytes.size(), "every byte has a mark");
}

}  // namespace
}  // namespace sherd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sherd::fuzz::expect_answer([&] { sherd::fuzz::use({data, size}); });
  return 0;
}
