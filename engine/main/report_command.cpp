#include "engine/main/commands.h"

#include <fmt/format.h>

#include "engine/main/html_file.h"
#include "engine/run/run_report.h"

namespace sherd::main {
namespace {

// `sherd report`: runs side by side; engine/run/run_report.h.
class ReportCommand {
 public:
  explicit ReportCommand(CLI::App& command);
  void run() const;

 private:
  std::vector<std::string> folders_;
  std::string html_;
};

ReportCommand::ReportCommand(CLI::App& command) {
  command.add_option("runs", folders_, "Folders of runs, or folders that hold some")
      ->type_name("RUN")
      ->required();
  command.add_option("--html", html_, "Also write one page with the curves")->type_name("FILE");
}

void ReportCommand::run() const {
  const auto runs = engine::read_runs(folders_);
  if (!html_.empty()) write_html(html_, engine::report_page(runs));
  fmt::print("{}", engine::report_text(runs));
}

}  // namespace

Command report_command(CLI::App& program) {
  return make_command<ReportCommand>(program, "report",
                                     "Compare runs: losses, speed, memory, recipes");
}

}  // namespace sherd::main
