#include "engine/main/commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "engine/inference/chat.h"
#include "engine/main/chosen_checkpoint.h"
#include "engine/main/command_line.h"
#include "engine/main/standard_streams.h"

namespace sherd::main {
namespace {

// `sherd chat`: a conversation with a checkpoint or a Hugging Face folder.
class ChatCommand {
 public:
  explicit ChatCommand(CLI::App& command);
  void run() const;

 private:
  std::string path_;
  std::vector<std::string> sets_;
  std::string system_;
  std::int64_t context_ = 0;
  bool average_ = false;
  engine::SamplingOptions sampling_{.num_tokens = 256, .temperature = 0.8};
};

ChatCommand::ChatCommand(CLI::App& command) {
  add_trained_model(command, path_, sets_);
  command.add_option("--system", system_, "The conversation's first message");
  add_context(command, context_);
  add_average(command, average_);
  add_sampling(command, sampling_, "Maximum tokens of an answer (default 256)");
}

void ChatCommand::run() const {
  const bool asks = ::isatty(STDIN_FILENO) != 0;
  const engine::ChosenCheckpoint chosen = chosen_checkpoint(path_);
  engine::ChatRequest request{.model = {chosen.path, sets_, 1, {}, average_},
                              .options = {.sampling = sampling_},
                              .system = system_,
                              .context = context_,
                              .next_message = [&]() -> std::optional<std::string> {
                                for (std::string line;;) {
                                  if (asks) fmt::print("> ");
                                  std::fflush(stdout);
                                  if (!std::getline(std::cin, line)) break;
                                  if (!line.empty()) return line;
                                }
                                if (asks) fmt::print("\n");
                                return std::nullopt;
                              }};
  request.model.if_too_large = kSmallerContext;
  request.on_note = [](const std::string& note) { print_error("note: " + note); };
  request.on_text = [](std::string_view text) {
    fmt::print("{}", text);
    std::fflush(stdout);
  };
  request.on_answer = [](const engine::GeneratedText* text) {
    fmt::print("{}\n", text == nullptr ? " (stopped)" : "");
  };
  if (asks) {
    request.on_begin = [] { print_error("Ctrl-C stops an answer, Ctrl-D ends the conversation."); };
  }
  engine::chat(request);
}

}  // namespace

Command chat_command(CLI::App& program) {
  return make_command<ChatCommand>(program, "chat", "Talk to the model, by its own chat template");
}

}  // namespace sherd::main
