#include <fmt/format.h>

#include "core/error.h"
#include "core/human_text.h"
#include "core/small_file.h"
#include "engine/data/arrow/arrow_rows.h"
#include "engine/launch/cpu_rates.h"
#include "engine/launch/link_rates.h"
#include "engine/launch/system_info.h"
#include "engine/main/command_line.h"
#include "engine/main/commands.h"
#include "engine/main/world.h"
#include "engine/offload/disk_rate.h"
#include "engine/offload/file_home.h"

namespace sherd::main {
namespace {

constexpr std::int64_t kMostLogBytes = std::int64_t{1} << 30;

struct InfoCommand {
  explicit InfoCommand(CLI::App& command) {
    command.add_option("--disk", folder_,
                       "Also measure the drive of this folder, as state on disk would use it");
    command.add_flag("--rates", rates_,
                     "Measure the processor again, for predictions of steps on CPUs, and print "
                     "its rates (two seconds)");
    command.add_flag("--links", links_,
                     "Measure how fast the processes of this start exchange, and print a file for "
                     "sherd plan --cluster; start it with sherd launch or mpirun");
    command
        .add_option("--nccl-log", nccl_log_,
                    "Also say how NCCL reached other machines, from its log (NCCL_DEBUG=INFO, "
                    "NCCL_DEBUG_FILE)")
        ->type_name("FILE");
  }
  int run() const {
    if ((links_ || rates_) && (!folder_.empty() || !nccl_log_.empty() || (links_ && rates_))) {
      throw UsageError("--rates and --links can't be combined with other options.");
    }
    if (links_) return print_links();
    print_machine();
    return 0;
  }

 private:
  static int print_links() {
    if (num_processes() <= 1) {
      throw UsageError(
          "--links needs several processes: start it on the machines with sherd launch, such as "
          "sherd launch -n 2 -- info --links");
    }
    return in_world([](const std::shared_ptr<sharding::Processes>& processes) {
      const engine::LinkRates rates = engine::measure_links(*processes);
      if (speaks(processes)) fmt::print("{}", engine::cluster_text(rates));
    });
  }

  void print_machine() const {
    std::string log;
    if (!nccl_log_.empty()) {
      require_no_folder(nccl_log_, "--nccl-log");
      log = read_small_file(nccl_log_, kMostLogBytes);
    }
    if (rates_) {
      fmt::print("{}", engine::cpu_rates_text(engine::cpu_rates(/*measure_again=*/true)));
      return;
    }
    fmt::print("{}{:<10} {}\n", engine::system_info(log), "tables", data::arrow_text());
    if (folder_.empty()) return;
    const engine::MeasuredDisk disk = engine::measure_disk(checkpoint::posix_disk(), folder_);
    fmt::print("{:<10} {}: reads {}/s, writes {}/s{}\n", "disk", folder_,
               human_bytes(static_cast<std::int64_t>(disk.read)),
               human_bytes(static_cast<std::int64_t>(disk.write)),
               disk.direct ? "" : "; through the page cache: it refuses direct access");
    const std::string remark = engine::remark_on_folder(folder_);
    if (!remark.empty()) fmt::print("{:<10} {}\n", "", remark);
  }

  std::string folder_, nccl_log_;
  bool rates_ = false, links_ = false;
};

}  // namespace

Command info_command(CLI::App& program) {
  return make_command<InfoCommand>(program, "info",
                                   "Print version, libraries and what this machine offers");
}

}  // namespace sherd::main
