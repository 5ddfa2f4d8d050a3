#include "engine/data/chat/conversation_renderer.h"

#include <memory>

#include "engine/data/template/json_value.h"

namespace sherd::data {
namespace {

using templates::Dict;
using templates::MarkedText;
using templates::Value;

// A message whose texts, but for its role, are marked.
Value spoken(const Value& fields) {
  auto marked = std::make_shared<Dict>();
  for (const auto& [key, value] : fields.dict()->items) {
    const bool is_role = key.text()->bytes == "role";
    marked->add(key, is_role ? value : templates::with_mark(value, templates::kSpoken));
  }
  return marked;
}

}  // namespace

ConversationRenderer::ConversationRenderer(const std::string& folder,
                                           const std::vector<tokenizer::NamedToken>& named,
                                           const templates::Limits& limits)
    : named_(named), limits_(limits), templates_(folder) {
  for (const NamedTemplate& one : templates_.all()) {
    if (!one.parsed || !templates_.is_used(one)) continue;
    habits_.emplace_back(one.name,
                         habits_of([&](const std::vector<Value>& messages, const Value& tools) {
                           Conversation of;
                           of.tools = tools;
                           return render(one, messages, of, false).bytes;
                         }));
  }
}

Conversation ConversationRenderer::adapted(const Conversation& conversation) const {
  const std::string& name = template_of(conversation).name;
  Conversation result = conversation;
  for (const auto& [known, habits] : habits_) {
    if (known != name) continue;
    for (Message& message : result.messages) {
      message.fields = data::adapted(message.fields, habits);
    }
  }
  return result;
}

MarkedText ConversationRenderer::render(const Conversation& conversation,
                                        const Request& request) const {
  std::vector<Value> messages;
  for (std::size_t i = 0; i < request.count; ++i) {
    const Value& fields = conversation.messages[i].fields;
    messages.push_back(request.spoken && request.spoken(i) ? spoken(fields) : fields);
  }
  return render(template_of(conversation), std::move(messages), conversation, request.prompt);
}

Dict ConversationRenderer::variables_of(const Conversation& conversation, bool prompt) const {
  Dict variables;
  for (const tokenizer::NamedToken& one : named_) {
    variables.set(Value::text(one.name), Value::text(one.token.content));
  }
  for (const auto& [name, value] : conversation.variables.items) variables.set(name, value);
  variables.set(Value::text("tools"), conversation.tools);
  variables.set(Value::text("documents"), conversation.documents);
  variables.set(Value::text("add_generation_prompt"), prompt);
  return variables;
}

MarkedText ConversationRenderer::render(const NamedTemplate& with, std::vector<Value> messages,
                                        const Conversation& of, bool prompt) const {
  Dict variables = variables_of(of, prompt);
  variables.set(Value::text("messages"), Value::list(std::move(messages)));
  try {
    return with.parsed->render(variables, {}, limits_);
  } catch (const DataError& error) {
    throw UnfitRow(unfit::kTemplate, "{}", error.what());
  }
}

std::optional<templates::Beginnings> ConversationRenderer::render_beginnings(
    const Conversation& conversation, const std::vector<bool>& wanted, bool prompt) const {
  templates::BeginningsRequest request{.messages = {}, .wanted = wanted, .as_last = {}};
  for (const Message& message : conversation.messages) request.messages.push_back(message.fields);
  request.as_last = [&](std::size_t i) { return spoken(conversation.messages[i].fields); };
  return template_of(conversation)
      .parsed->render_beginnings(variables_of(conversation, prompt), request, limits_);
}

}  // namespace sherd::data
