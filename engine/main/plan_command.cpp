#include "engine/main/commands.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <optional>

#include "core/byte_size.h"
#include "core/error.h"
#include "engine/main/command_line.h"
#include "engine/main/html_file.h"
#include "engine/offload/disk_rate.h"
#include "engine/plan/largest_segment.h"
#include "engine/plan/ledger/step_ledger.h"
#include "engine/plan/paper_convention.h"
#include "engine/plan/parameter_table.h"
#include "engine/plan/report.h"
#include "engine/plan/search/exchange_forms.h"
#include "engine/plan/search/search.h"
#include "engine/plan/time/printed_plan.h"
#include "engine/plan/time/step_comparison.h"
#include "engine/recipe/recipe.h"
#include "engine/recipe/segments.h"
#include "engine/recipe/use_conditions.h"
#include "engine/run/run_setup.h"

namespace sherd::main {
namespace {

// `sherd plan`: what a recipe needs, before anything is allocated.
class PlanCommand {
 public:
  explicit PlanCommand(CLI::App& command);
  void run() const;

 private:
  engine::RecipeRequest request_;
  std::optional<std::string> device_memory_, server_memory_;
  std::string html_;
  int ranks_per_machine_ = 0;
  bool json_ = false, parameters_ = false, ledger_ = false, paper_convention_ = false;
  bool measure_disk_ = false, search_ = false, exchanges_ = false;
  engine::SearchRequest wanted_;
  std::string cluster_;
  const CLI::Option* top_ = nullptr;

  void add_search_options(CLI::App& command);
  void search(const engine::ResolvedRecipe& recipe) const;
  void predict(const engine::ResolvedRecipe& resolved) const;
};

PlanCommand::PlanCommand(CLI::App& command) {
  add_recipe(command, request_)->required();
  command
      .add_option(
          "--device-memory", device_memory_,
          "Memory of one rank's device, e.g. 80GiB (default: the recipe's, or this machine's)")
      ->type_name("SIZE");
  command
      .add_option("--server-memory", server_memory_,
                  "Memory of one parameter server (default: the recipe's, or --device-memory)")
      ->type_name("SIZE");
  command
      .add_option("--ranks-per-machine", ranks_per_machine_,
                  "Also show what machines of N ranks send to each other (CPUs, MPI)")
      ->type_name("N")
      ->check(CLI::Range(1, 65'536));
  command.add_flag("--measure-disk", measure_disk_,
                   "Also measure the drive that state is kept on, for the seconds of a step");
  command.add_flag("--json", json_, "Print one JSON object instead of tables");
  command.add_option("--html", html_, "Also write one HTML page with charts")->type_name("FILE");
  command.add_flag(
      "--parameters", parameters_,
      "Print one row per parameter instead: how it is split, summed and counted in norms");
  command.add_flag("--ledger", ledger_,
                   "Print every kernel that a step launches on a GPU instead, with bytes, flops, "
                   "and the predicted time on an H100 and an H200");
  add_search_options(command);
  command.add_flag("--paper-convention", paper_convention_,
                   "Print model states only, counted as in the ZeRO paper's table 1");
}

void PlanCommand::add_search_options(CLI::App& command) {
  command.add_flag("--search", search_,
                   "Print the fastest layouts that fit instead, as --set options with predicted "
                   "times");
  command
      .add_option("--cluster", cluster_,
                  "Predict the step's time on these machines, or search for them: a file with "
                  "machines, ranks_per_machine, device, and optionally memory and links "
                  "(default: the recipe's ranks, here)")
      ->type_name("FILE");
  command.add_flag("--exchanges", exchanges_,
                   "With --cluster: what each way to exchange less would take there, and what it "
                   "does to results");
  top_ = command.add_option("--top", wanted_.top, "How many layouts --search prints (default: 3)")
             ->type_name("N")
             ->check(CLI::Range(1, 100));
  command
      .add_option("--keep", wanted_.keep,
                  "Keys, or blocks of keys, that --search leaves as they are")
      ->type_name("KEY");
  command.add_option("--tokens", wanted_.tokens, "Also say how many days N tokens take, e.g. 1e12")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->check([](const std::string& text) {
        return std::isfinite(std::stod(text)) ? std::string() : text + " is no number of tokens";
      });
}

// Of the drive with the recipe's state on disk. A folder that isn't there will be made in the nearest
// one that is.
engine::DiskRates rates_of(const engine::Recipe& recipe) {
  std::filesystem::path folder = engine::offload_folder(recipe);
  std::error_code ignored;
  while (!folder.empty() && !std::filesystem::exists(folder, ignored)) {
    folder = folder.parent_path();
  }
  const engine::MeasuredDisk disk = engine::measure_disk(
      checkpoint::posix_disk(), folder.empty() ? std::string(".") : folder.string());
  return {disk.read, disk.write};
}

std::optional<std::int64_t> bytes_of(const std::optional<std::string>& size) {
  if (!size) return std::nullopt;
  try {
    return parse_bytes(*size);
  } catch (const UsageError& error) {
    throw UsageError("--device-memory: {}", error.what());
  }
}

void PlanCommand::search(const engine::ResolvedRecipe& recipe) const {
  if (parameters_ || paper_convention_ || ledger_ || exchanges_ || ranks_per_machine_ > 0 ||
      measure_disk_) {
    throw UsageError(
        "--search can only be combined with --cluster, --top, --keep, --tokens, --device-memory, "
        "--html and --json.");
  }
  constexpr std::size_t kDrawn = 100;  // plans for the picture
  engine::SearchRequest request = wanted_;
  request.device_memory = bytes_of(device_memory_);
  if (!html_.empty()) request.tradeoff = kDrawn;
  if (!cluster_.empty()) request.cluster = engine::read_cluster(cluster_);
  const auto rates = engine::rates_for(recipe.values, request.cluster);
  const engine::SearchResult result = engine::search_layouts(recipe, request, *rates);
  if (!html_.empty()) write_html(html_, engine::search_page(result, recipe.values.run.name));
  fmt::print("{}", json_ ? engine::search_json(result) : engine::search_text(result));
}

void PlanCommand::predict(const engine::ResolvedRecipe& resolved) const {
  const engine::Recipe& recipe = resolved.values;
  if (parameters_ || paper_convention_ || ledger_ || !html_.empty() || ranks_per_machine_ > 0 ||
      measure_disk_ || device_memory_) {
    throw UsageError("--cluster can only be combined with --exchanges and --json, or --search.");
  }
  if (exchanges_) {
    const engine::Cluster cluster = engine::read_cluster(cluster_);
    std::optional<engine::CpuRates> cpus;
    if (cluster.on_cpus()) cpus = engine::cpu_rates();
    const auto forms = engine::exchange_forms(resolved, cluster, cpus);
    fmt::print("{}",
               json_ ? engine::exchange_forms_json(forms) : engine::exchange_forms_text(forms));
    return;
  }
  const auto step = engine::predicted_step(recipe, engine::read_cluster(cluster_));
  fmt::print("{}", json_ ? engine::predicted_step_json(step) : engine::predicted_step_text(step));
}

void PlanCommand::run() const {
  engine::RecipeRequest request = request_;
  request.reads_data = false;
  if (server_memory_ &&
      (search_ || !cluster_.empty() || ledger_ || parameters_ || paper_convention_)) {
    throw UsageError(
        "--server-memory can't be combined with --search, --cluster, --ledger, "
        "--parameters or --paper-convention.");
  }
  if (server_memory_) request.sets.push_back("memory.server_memory=" + *server_memory_);
  const engine::ResolvedRecipe resolved = engine::resolve_recipe(request);
  if (search_) engine::require_one_shape(resolved.values, "--search");
  const engine::LargestSegment largest = engine::largest_segment(resolved);
  const engine::ResolvedRecipe& recipe = largest.recipe;
  if (search_) return search(recipe);
  if (!wanted_.keep.empty() || wanted_.tokens > 0.0 || top_->count() > 0) {
    throw UsageError("--keep, --tokens and --top belong to --search: add it.");
  }
  if (exchanges_ && cluster_.empty()) {
    throw UsageError("--exchanges needs --cluster FILE, which says how fast links are.");
  }
  const bool predicts = !cluster_.empty() || ledger_;
  if (predicts && !json_ && !largest.text.empty()) fmt::print("{}\n", largest.text);
  if (!cluster_.empty()) return predict(recipe);
  if (ledger_) {
    if (parameters_ || paper_convention_ || !html_.empty() || device_memory_ ||
        ranks_per_machine_ > 0 || measure_disk_) {
      throw UsageError("--ledger can only be combined with --json.");
    }
    fmt::print("{}",
               json_ ? engine::ledger_json(recipe.values) : engine::ledger_text(recipe.values));
    return;
  }
  if (parameters_) {
    if (json_ || !html_.empty() || device_memory_ || paper_convention_ || ranks_per_machine_ > 0 ||
        measure_disk_) {
      throw UsageError("--parameters can't be combined with other options.");
    }
    fmt::print("{}", engine::parameter_rows(recipe.values));
    return;
  }
  if (paper_convention_) {
    if (json_ || !html_.empty() || device_memory_ || ranks_per_machine_ > 0 || measure_disk_) {
      throw UsageError("--paper-convention can't be combined with other options.");
    }
    fmt::print("{}", engine::paper_table(recipe.values));
    return;
  }
  if (measure_disk_ && !engine::use_conditions::offloads(recipe.values)) {
    throw UsageError("--measure-disk is for recipes with state on disk, which this one hasn't.");
  }
  const std::optional<std::int64_t> device_memory = bytes_of(device_memory_);
  const auto report = engine::plan_report(
      recipe, engine::device_limit(recipe.values, device_memory), ranks_per_machine_,
      measure_disk_ ? std::optional(rates_of(recipe.values)) : std::nullopt);
  if (!html_.empty()) write_html(html_, engine::plan_page(report));
  fmt::print("{}", json_ ? engine::printed_plan_json(largest, report)
                         : engine::printed_plan(largest, report));
}

}  // namespace

Command plan_command(CLI::App& program) {
  return make_command<PlanCommand>(program, "plan",
                                   "Show what a recipe needs and sends, and whether it fits");
}

}  // namespace sherd::main
