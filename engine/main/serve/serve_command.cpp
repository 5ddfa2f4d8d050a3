#include "engine/main/serve/serve_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "engine/main/chosen_checkpoint.h"
#include "engine/main/command_line.h"
#include "engine/main/serve/text_server.h"
#include "engine/main/standard_streams.h"

namespace sherd::main {
namespace {

// `sherd serve`: a model for HTTP clients.
class ServeCommand {
 public:
  explicit ServeCommand(CLI::App& command) {
    add_trained_model(command, path_, sets_);
    command.add_option("--host", options_.host,
                       "Address to listen at (default 127.0.0.1: this machine alone)");
    command.add_option("--port", options_.port, "Port; 0: any free one (default 8000)")
        ->check(CLI::Range(0, 65535));
    command.add_option("--name", options_.name,
                       "The model's name for clients (default: its folder's)");
    add_context(command, options_.context);
    command
        .add_option("--tokens", options_.max_tokens,
                    "Maximum tokens of a text (default: as many as the context has room for)")
        ->check(CLI::Range(1, 1 << 24));
    command
        .add_option("--waiting", options_.max_waiting,
                    "Requests that may wait; further ones get status 429 (default 16)")
        ->check(CLI::Range(0, 1000));
    command
        .add_option("--seconds", seconds_,
                    "Time limit of a text, from its first token (default 600)")
        ->check(CLI::Range(1, 1 << 24));
    add_average(command, average_);
  }

  void run() {
    const engine::ChosenCheckpoint chosen = chosen_checkpoint(path_);
    options_.model = {chosen.path, sets_, 1, {}, average_};
    options_.model.if_too_large = kSmallerContext;
    options_.time_limit = std::chrono::seconds(seconds_);
    if (options_.name.empty()) {
      const std::filesystem::path folder =
          std::filesystem::absolute(path_ + "/").lexically_normal();
      options_.name = folder.parent_path().filename().string();
    }
    options_.on_note = [](const std::string& note) { print_error("note: " + note); };
    options_.on_begin = [this](const std::string& address) {
      fmt::print("serving {} at {}; Ctrl-C ends it\n", options_.name, address);
      std::fflush(stdout);
    };
    serve_text(options_);
  }

 private:
  std::string path_;
  std::vector<std::string> sets_;
  bool average_ = false;
  std::int64_t seconds_ = 600;
  TextServerOptions options_;
};

}  // namespace

Command serve_command(CLI::App& program) {
  return make_command<ServeCommand>(program, "serve",
                                    "Serve the model to HTTP clients, as OpenAI's interface");
}

}  // namespace sherd::main
