#include <fmt/format.h>

#include "engine/main/command_line.h"
#include "engine/main/commands.h"
#include "engine/run/mup_check.h"

namespace sherd::main {
namespace {

constexpr int kNotFlat = 5;  // as of a run that failed

// `sherd mup-check`: activations by width and step; engine/run/mup_check.h.
class MupCheckCommand {
 public:
  explicit MupCheckCommand(CLI::App& command);
  int run() const;

 private:
  engine::MupCheckRequest request_;
};

MupCheckCommand::MupCheckCommand(CLI::App& command) {
  add_recipe(command, request_.recipe)->required();
  command
      .add_option("--widths", request_.num_widths,
                  "Number of widths: the base times 1, 2, 4, ... (default 4)")
      ->type_name("N")
      ->check(CLI::Range(2, 10));
  command.add_option("--steps", request_.num_steps, "Steps of training at each width (default 5)")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000));
}

int MupCheckCommand::run() const {
  const engine::MupCheck check = engine::mup_check(request_);
  fmt::print("{}\n", engine::mup_check_text(check));
  return check.is_flat ? 0 : kNotFlat;
}

}  // namespace

Command mup_check_command(CLI::App& program) {
  return make_command<MupCheckCommand>(
      program, "mup-check",
      "Train tiny widths and compare their activations: muP's coordinate check");
}

}  // namespace sherd::main
