#include "engine/main/report_command.h"

#include <fmt/format.h>

#include "engine/main/html_file.h"
#include "engine/run/run_report.h"

namespace sherd::main {

ReportCommand::ReportCommand(CLI::App& app)
    : command_(app.add_subcommand("report", "Compare runs: losses, speed, memory, recipes")) {
  command_->add_option("runs", folders_, "Run folders, or folders that contain runs")
      ->type_name("RUN")
      ->required();
  command_->add_option("--html", html_, "Also write one HTML page with curves")->type_name("FILE");
}

void ReportCommand::run() const {
  const auto runs = engine::read_runs(folders_);
  if (!html_.empty()) write_html(html_, engine::report_page(runs));
  fmt::print("{}", engine::report_text(runs));
}

}  // namespace sherd::main
