// An arbitrary row of chat data, and a chat template: places of answers, or one sentence. Rendering
// all beginnings of the conversation at once finds what rendering each by itself finds. Two bytes of 0xff
// part row and template.
#include "engine/data/chat/chat_format.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/models/small_tokenizer.h"

namespace sherd::fuzz {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}<|end|>{{ m.role }}{{ m.content }}{{ m.tool_calls }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|end|>assistant{% endif %}";

std::shared_ptr<const tokenizer::Tokenizer> tokenizer() {
  static const auto kTokenizer = tokenizer::Tokenizer::parse(test::small_tokenizer().dump(), "t");
  return kTokenizer;
}

// Nothing, and why, where it is refused. A second is enough for a rendering.
std::optional<data::ChatFormat::Rendered> rendered(const data::Conversation& conversation,
                                                   data::Renderings renderings) {
  data::ChatOptions options;
  options.renderings = renderings;
  options.limits = {.steps = 1'000'000, .bytes = 8 << 20};
  const data::ChatFormat format(folder().path(), tokenizer(), options);
  try {
    return format.render(conversation);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void use(std::string_view all) {
  const std::size_t end = all.find("\xff\xff");
  folder().write("chat_template.jinja",
                 end == std::string_view::npos ? kTemplate : all.substr(end + 2));
  const data::Conversation conversation = data::read_conversation(all.substr(0, end));
  if (conversation.is_plain) return;
  const auto alone = rendered(conversation, data::Renderings::kOneByOne);
  const auto together = rendered(conversation, data::Renderings::kAllTogether);
  demand(alone.has_value() == together.has_value(), "the same verdict");
  if (!alone) return;
  demand(alone->text.bytes == together->text.bytes && alone->text.marks == together->text.marks,
         "the same text");
  demand(alone->trained == together->trained, "the same answers");
  std::size_t before = 0;
  for (const data::Span& span : alone->trained) {
    demand(before <= span.begin && span.begin <= span.end && span.end <= alone->text.size(),
           "answers are in order");
    before = span.end;
  }
}

}  // namespace
}  // namespace sherd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sherd::fuzz::expect_answer([&] {
    sherd::fuzz::use({reinterpret_cast<const char*>(data), size});
  });
  return 0;
}
