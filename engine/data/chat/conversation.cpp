#include "engine/data/chat/conversation.h"

#include <algorithm>
#include <cctype>

#include "engine/data/chat/message_fields.h"
#include "engine/data/template/json_value.h"

namespace sherd::data {
namespace {

using templates::Dict;
using templates::MarkedText;
using templates::None;
using templates::Value;

// A row and what has been read of it.
class Fields {
 public:
  explicit Fields(const Dict& dict) : dict_(dict) {}

  /// Unless it isn't there or null. It counts as read.
  const Value* take(std::string_view name) {
    read_.push_back(name);
    return present(dict_, name);
  }
  bool has(std::string_view name) const { return present(dict_, name) != nullptr; }
  const MarkedText& take_text(std::string_view name) {
    read_.push_back(name);
    return text_field(dict_, name);
  }
  /// Empty where it is null or missing.
  MarkedText take_optional_text(std::string_view name) {
    return take(name) ? take_text(name) : MarkedText();
  }
  std::vector<std::string> unread() const {
    std::vector<std::string> names;
    for (const auto& [key, value] : dict_.items) {
      const std::string& name = key.text()->bytes;
      const bool says_something = !value.is_none() && (value.is_number() || truth(value));
      if (says_something && std::ranges::find(read_, name) == read_.end()) names.push_back(name);
    }
    return names;
  }
  const Dict& dict() const { return dict_; }

 private:
  const Dict& dict_;
  std::vector<std::string_view> read_;
};

void add_messages(Conversation& conversation, Fields& row, std::string_view name) {
  const Value messages = parsed_if_text(*row.take(name), fmt::format("\"{}\"", name));
  if (!messages.list()) throw UnfitRow(unfit::kWrongType, "\"{}\" isn't a list", name);
  for (const Value& message : messages.list()->items) add_message(conversation, message);
}

// Earlier questions and answers: [["q", "a"], ...].
void add_history(Conversation& conversation, Fields& row) {
  const Value* given = row.take("history");
  if (!given) return;
  const Value history = parsed_if_text(*given, "\"history\"");
  const auto refuse = [] {
    throw UnfitRow(unfit::kWrongType, "\"history\" isn't a list of pairs of texts");
  };
  if (!history.list()) refuse();
  for (const Value& turn : history.list()->items) {
    if (!turn.list() || turn.list()->items.size() != 2) refuse();
    const Value& question = turn.list()->items[0];
    const Value& answer = turn.list()->items[1];
    if (!question.text() || !answer.text()) refuse();
    add_message(conversation, "user", *question.text());
    add_message(conversation, "assistant", *answer.text());
  }
}

void add_alpaca(Conversation& conversation, Fields& row) {
  if (!row.has("output") && (row.has("chosen") || row.has("rejected"))) {
    throw UnfitRow(unfit::kPreference,
                   "\"chosen\" and \"rejected\" are preferences, which need preference.loss");
  }
  add_history(conversation, row);
  MarkedText question = row.take_optional_text("instruction");
  const MarkedText input = row.take_optional_text("input");
  if (question.empty() && input.empty()) row.take_text("instruction");
  if (!question.empty() && !input.empty()) question.append("\n\n", templates::kFromData);
  question.append(input);
  add_message(conversation, "user", question);
  add_message(conversation, "assistant", row.take_text("output"));
}

// {"prompt", "completion"}, texts or lists of messages.
void add_prompt(Conversation& conversation, Fields& row) {
  if (row.has("chosen") || row.has("rejected")) {
    throw UnfitRow(unfit::kPreference,
                   "\"chosen\" and \"rejected\" are preferences, which need preference.loss");
  }
  if (!row.has("completion")) {
    throw UnfitRow(unfit::kNoForm, "has a \"prompt\" but no \"completion\"");
  }
  const Value& prompt = *row.take("prompt");
  const Value& completion = *row.take("completion");
  if (static_cast<bool>(prompt.text()) != static_cast<bool>(completion.text())) {
    throw UnfitRow(unfit::kWrongType, "one of \"prompt\" and \"completion\" is a text, one isn't");
  }
  if (prompt.text()) {
    conversation.is_plain = true;
    conversation.prompt = *prompt.text();
    conversation.completion = *completion.text();
    return;
  }
  add_messages(conversation, row, "prompt");
  conversation.num_prompt_messages = conversation.messages.size();
  add_messages(conversation, row, "completion");
}

void check_roles(const Conversation& conversation) {
  bool asked = false, answered = false;
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    const std::string_view role = role_of(conversation.messages[i]);
    const auto refuse = [&](std::string_view why) {
      throw UnfitRow(unfit::kRoleOrder, "message {} {}", i + 1, why);
    };
    if ((role == "system" || role == "developer") && (asked || answered)) {
      refuse("is a system message, which must come first");
    }
    if (role == "assistant" && !asked) refuse("is an answer, but nothing was asked before");
    const bool is_result = role == "tool" || role == "function" || role == "ipython";
    if (is_result && !answered) refuse("is a tool's result, but nothing called one");
    asked |= role == "user" || is_result;
    answered |= role == "assistant";
  }
}

// What follows the last message that isn't the assistant's.
std::size_t prompt_messages(const Conversation& conversation) {
  std::size_t count = conversation.messages.size();
  while (count > 0 && conversation.messages[count - 1].is_answer) --count;
  return count;
}

// The row's own system text goes before the messages.
void add_system(Conversation& conversation, Fields& row) {
  const MarkedText system = row.take_optional_text("system");
  if (system.empty()) return;
  if (conversation.is_plain) {
    throw UnfitRow(unfit::kWrongType,
                   "has \"system\", but its \"prompt\" is a text, and no template joins them");
  }
  auto& messages = conversation.messages;
  if (!messages.empty() && role_of(messages[0]) == "system") {
    const Value* first = messages[0].fields.dict()->named("content");
    if (first && first->text() && first->text()->bytes == system.bytes) return;
    throw UnfitRow(unfit::kRoleOrder, "has \"system\", and a different system message");
  }
  add_message(conversation, "system", system);
  std::rotate(messages.begin(), messages.end() - 1, messages.end());
  conversation.num_prompt_messages += 1;
}

// A list, maybe as JSON text, also each of its elements; of OpenAI's older "functions".
void add_tools(Conversation& conversation, Fields& row) {
  const Value* tools = row.take("tools");
  const Value* functions = row.take("functions");
  if (!tools && !functions) return;
  if (tools && tools->text() && tools->text()->empty()) return;  // LLaMA-Factory's way to say none
  const Value list = tools ? parsed_if_text(*tools, "\"tools\"") : *functions;
  if (!list.list()) throw UnfitRow(unfit::kWrongType, "\"tools\" isn't a list");
  std::vector<Value> items;
  for (const Value& item : list.list()->items) {
    Value tool = parsed_if_text(item, "an element of \"tools\"");
    if (!tool.dict()) throw UnfitRow(unfit::kWrongType, "an element of \"tools\" isn't an object");
    if (tools) {
      items.push_back(std::move(tool));
    } else {
      auto wrapped = std::make_shared<Dict>();
      wrapped->set(Value::text("type"), Value::text("function"));
      wrapped->set(Value::text("function"), std::move(tool));
      items.emplace_back(std::move(wrapped));
    }
  }
  if (items.empty()) return;
  conversation.tools = templates::with_mark(Value::list(std::move(items)), kOfTools);
  watch(conversation, "tools", kOfTools);
}

void add_documents(Conversation& conversation, Fields& row) {
  const Value* documents = row.take("documents");
  if (!documents || !documents->list() || documents->list()->items.empty()) return;
  conversation.documents = templates::with_mark(*documents, kOfOther);
  watch(conversation, "documents", has_text(*documents) ? kOfOther : 0);
}

void add_variables(Conversation& conversation, Fields& row) {
  const Value* given = row.take("chat_template_kwargs");
  if (!given) return;
  const Value variables = parsed_if_text(*given, "\"chat_template_kwargs\"");
  if (!variables.dict()) {
    throw UnfitRow(unfit::kWrongType, "\"chat_template_kwargs\" isn't an object");
  }
  for (const auto& [key, value] : variables.dict()->items) {
    const std::string& name = key.text()->bytes;
    if (name == "messages" || name == "tools" || name == "documents" ||
        name == "add_generation_prompt") {
      throw UnfitRow(unfit::kWrongType, "\"chat_template_kwargs\" has \"{}\"", name);
    }
    watch(conversation, name, 0);
    conversation.variables.set(Value::text(name), value);
  }
}

void refuse_media(const Fields& row) {
  for (const char* name : {"images", "image", "videos", "video", "audios", "audio"}) {
    const Value* value = present(row.dict(), name);
    if (value && truth(*value)) {
      throw UnfitRow(unfit::kMedia, "has \"{}\", which aren't read", name);
    }
  }
}

// Judgements of an answer: TRL's unpaired preferences and LLaMA-Factory's KTO.
void refuse_judgement(const Fields& row) {
  for (const char* name : {"kto_tag", "label"}) {
    const Value* value = present(row.dict(), name);
    const bool is_judgement = value && value->get<bool>() &&
                              (std::string_view(name) == "kto_tag" || row.has("completion"));
    if (is_judgement) {
      throw UnfitRow(unfit::kPreference,
                     "has \"{}\", a judgement, which needs preference.loss: kto", name);
    }
  }
}

// NeMo's: the role that isn't trained on, which is the user's here too.
void read_mask(Fields& row) {
  const Value* mask = row.take("mask");
  if (!mask) return;
  std::string role = mask->text() ? mask->text()->bytes : "";
  std::transform(role.begin(), role.end(), role.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (role == "user" || role == "human") return;
  throw UnfitRow(unfit::kUnknownMask,
                 "has a \"mask\" that isn't \"User\"; \"weight\": 0 or 1 says whether a message is "
                 "trained on");
}

[[noreturn]] void refuse_form(const Fields& row) {
  if (row.has("chosen") || row.has("rejected") || row.has("preferred_output")) {
    throw UnfitRow(unfit::kPreference,
                   "has preferences between answers, which need preference.loss");
  }
  std::string names;
  for (const auto& [key, value] : row.dict().items) {
    if (names.size() > 60) break;
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", key.text()->bytes.substr(0, 40));
  }
  throw UnfitRow(unfit::kNoForm,
                 "has none of \"messages\", \"conversations\", \"instruction\" with \"output\", "
                 "\"prompt\" with \"completion\", \"text\"; it has {}",
                 names.empty() ? "nothing" : names);
}

void read_form(Conversation& conversation, Fields& row) {
  if (row.has("messages")) {
    add_messages(conversation, row, "messages");
  } else if (row.has("conversations")) {
    add_messages(conversation, row, "conversations");
  } else if (row.has("instruction")) {
    add_alpaca(conversation, row);
  } else if (row.has("prompt")) {
    return add_prompt(conversation, row);
  } else if (row.has("text")) {
    conversation.is_plain = true;
    conversation.completion = row.take_text("text");
  } else {
    refuse_form(row);
  }
  conversation.num_prompt_messages = prompt_messages(conversation);
}

}  // namespace

Conversation read_conversation(std::string_view json) {
  Value value;
  try {
    value = templates::value_of_json(json, templates::kFromData, /*row=*/true);
  } catch (const templates::Problem& problem) {
    throw UnfitRow(unfit::kNotJson, "{}", problem.text);
  }
  if (!value.dict()) throw UnfitRow(unfit::kNoForm, "isn't an object");
  Fields row(*value.dict());
  Conversation conversation;
  refuse_media(row);
  refuse_judgement(row);
  read_mask(row);
  read_form(conversation, row);
  add_system(conversation, row);
  add_tools(conversation, row);
  add_documents(conversation, row);
  add_variables(conversation, row);
  if (conversation.is_plain) {
    for (const WatchedField& field : conversation.watched)
      conversation.unread.push_back(field.name);
    conversation.watched.clear();
  }
  check_roles(conversation);
  const std::vector<std::string> unread = row.unread();
  conversation.unread.insert(conversation.unread.end(), unread.begin(), unread.end());
  return conversation;
}

}  // namespace sherd::data
