#include "engine/main/chat_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "engine/main/checkpoint_path.h"
#include "engine/main/command_line.h"
#include "engine/main/standard_streams.h"

namespace sherd::main {

ChatCommand::ChatCommand(CLI::App& app)
    : command_(app.add_subcommand("chat", "Talk to the model, by its own chat template")) {
  add_trained_model(*command_, path_, sets_);
  command_->add_option("--system", system_, "The conversation's first message");
  add_sampling(*command_, sampling_, "Tokens of an answer at most (256)");
}

void ChatCommand::run() const {
  const bool asks = ::isatty(STDIN_FILENO) != 0;
  engine::ChatRequest request{.model = {checkpoint_path(path_), sets_, 1},
                              .options = {.sampling = sampling_},
                              .system = system_,
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

}  // namespace sherd::main
