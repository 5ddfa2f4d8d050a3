#include <fmt/format.h>

#include "checkpoint/inspect.h"
#include "checkpoint/interchange/hdf5_export.h"
#include "checkpoint/interchange/safetensors_folder.h"
#include "checkpoint/store/verify.h"
#include "core/byte_size.h"
#include "engine/inference/evaluate.h"
#include "engine/inference/export.h"
#include "engine/main/chosen_checkpoint.h"
#include "engine/main/command_line.h"
#include "engine/main/commands.h"
#include "engine/main/standard_streams.h"
#include "engine/main/world.h"
#include "engine/report/metrics.h"

namespace sherd::main {
namespace {

void add_checkpoint(CLI::App& command, std::string& path) {
  command
      .add_option(
          "checkpoint", path,
          "Checkpoint folder, or run folder for its newest, e.g. runs/x; runs/x/best: its best")
      ->type_name("CKPT")
      ->required();
}

void verify(const std::string& path, bool deep) {
  const auto depth = deep ? checkpoint::VerifyDepth::kDeep : checkpoint::VerifyDepth::kShallow;
  const checkpoint::VerifyReport report = checkpoint::verify(checkpoint::posix_disk(), path, depth);
  for (const std::string& note : report.notes) fmt::print("note: {}\n", note);
  for (const std::string& problem : report.problems) fmt::print("{}\n", problem);
  if (!report.good()) {
    throw DataError("{}: {} problem{}; resume from another checkpoint.", path,
                    report.problems.size(), report.problems.size() == 1 ? "" : "s");
  }
  fmt::print("{}: good, {} files{}\n", path, report.num_files,
             deep ? fmt::format(", checksums of {} bytes verified", report.bytes_checked)
                  : " of correct sizes; --deep verifies every byte");
}

void evaluate(const engine::TrainedModelRequest& request, bool as_json) {
  const engine::TextLoss result = engine::evaluate_checkpoint(request);
  if (!speaks(request.processes)) return;
  if (result.is_of_other_data) {
    print_error(
        "note: the run had other data, or held out other texts of them, so this text may be among "
        "what it was trained on");
  }
  if (as_json) {
    auto& disk = checkpoint::posix_disk();
    std::int64_t steps = 0;  // of a folder they aren't known
    if (!checkpoint::is_model_folder(disk, request.checkpoint)) {
      steps = checkpoint::Checkpoint(disk, request.checkpoint).manifest().step;
    }
    engine::EvaluationMetrics line{steps,
                                   result.loss,
                                   result.loss_20_batches,
                                   result.num_tokens,
                                   result.perplexity(),
                                   result.bits_per_byte()};
    if (const auto& of = result.main_set.preference) {
      line.preference = engine::metrics_of(*of);
      line.perplexity.reset();
    }
    for (const auto& set : result.sets) {
      if (result.sets.size() > 1) line.sets.emplace_back(set.name, set.loss);
    }
    for (const auto& task : result.tasks) {
      line.tasks.push_back({task.name, task.acc(), task.acc_norm(), task.num_questions});
    }
    fmt::print("{}\n", engine::to_json(line));
    return;
  }
  if (const auto& of = result.main_set.preference) {
    fmt::print("{}: validation loss {:.4f} over {} {}", request.checkpoint, result.loss,
               result.num_tokens, of->has_pairs ? "pairs" : "answers");
    for (const auto& [name, value] : engine::metrics_of(*of))
      fmt::print(", {} {:.4f}", name, value);
    fmt::print("\n");
  } else {
    const std::optional<double> bits = result.bits_per_byte();
    fmt::print("{}: validation loss {:.4f} over {} tokens, perplexity {:.4f}{}\n",
               request.checkpoint, result.loss, result.num_tokens, result.perplexity(),
               bits ? fmt::format(", {:.4f} bits per byte", *bits) : "");
  }
  for (const engine::EvaluationResult::Task& task : result.tasks) {
    fmt::print("  {}: acc {:.4f}, acc_norm {:.4f} of {} questions\n", task.name, task.acc(),
               task.acc_norm(), task.num_questions);
  }
  if (result.sets.size() == 1) return;
  for (const engine::EvaluationResult::Set& set : result.sets) {
    const std::optional<double> of_set = set.bits_per_byte();
    fmt::print("  {}: loss {:.4f} over {} tokens{}\n", set.name, set.loss, set.num_tokens,
               of_set ? fmt::format(", {:.4f} bits per byte", *of_set) : "");
  }
}

class InspectCommand {
 public:
  explicit InspectCommand(CLI::App& command) {
    add_checkpoint(command, path_);
    command.add_flag("--json", json_, "One JSON object instead of a table");
    command.add_flag("--digests", digests_, "With --json: a checksum of every tensor");
  }
  void run() const {
    const engine::ChosenCheckpoint chosen = chosen_checkpoint(path_);
    const checkpoint::Checkpoint checkpoint(checkpoint::posix_disk(), chosen.path);
    fmt::print("{}", json_ ? checkpoint::inspect_json(checkpoint, digests_) + "\n"
                           : checkpoint::inspect_table(checkpoint));
  }

 private:
  std::string path_;
  bool json_ = false, digests_ = false;
};

class VerifyCommand {
 public:
  explicit VerifyCommand(CLI::App& command) {
    add_checkpoint(command, path_);
    command.add_flag("--deep", deep_, "Read every byte and compare it with its checksum");
  }
  void run() const {
    const engine::ChosenCheckpoint chosen = chosen_checkpoint(path_);
    verify(chosen.path, deep_);
    if (!chosen.refused.empty()) {
      throw DataError("{}: {} of its checkpoints {} refused.", path_, chosen.refused.size(),
                      chosen.refused.size() == 1 ? "is" : "are");
    }
  }

 private:
  std::string path_;
  bool deep_ = false;
};

class EvalCommand {
 public:
  explicit EvalCommand(CLI::App& command) {
    add_trained_model(command, path_, sets_);
    add_ranks(command, ranks_, "Number of ranks (default: the recipe's)");
    add_average(command, average_);
    command.add_flag("--json", json_, "One JSON object instead of a sentence");
  }
  int run() const {
    return in_world([this](const std::shared_ptr<sharding::Processes>& processes) {
      const engine::ChosenCheckpoint chosen = chosen_checkpoint(path_, processes);
      evaluate({.checkpoint = chosen.path,
                .sets = sets_,
                .ranks = ranks_or_processes(ranks_, processes),
                .average = average_,
                .processes = processes},
               json_);
    });
  }

 private:
  std::string path_;
  std::vector<std::string> sets_;
  std::optional<std::int64_t> ranks_;
  bool json_ = false, average_ = false;
};

class ExportCommand {
 public:
  explicit ExportCommand(CLI::App& command);
  void run() const;

 private:
  std::string path_, to_, to_folder_, dtype_, shard_size_;
  std::vector<std::string> sets_;
  bool merge_ = false, average_ = false, stack_experts_ = false;
  std::optional<std::int64_t> ranks_;
};

ExportCommand::ExportCommand(CLI::App& command) {
  add_checkpoint(command, path_);
  CLI::Option* file = command.add_option("--to", to_, "The HDF5 file to write; must not exist");
  command.add_option("--to-hf", to_folder_, "A Hugging Face folder to write; must not exist")
      ->type_name("FOLDER")
      ->excludes(file);
  command.add_flag(
      "--merge", merge_,
      "With --to-hf, for an adapter: write the whole model with it merged, not PEFT's files");
  command.add_flag(
      "--stack-experts", stack_experts_,
      "With --to-hf: one tensor for all experts of a layer, as transformers 5 holds them, "
      "instead of one for each");
  command
      .add_option(
          "--dtype", dtype_,
          "f32, bf16 or, with --to-hf, f16 (default f32; --to-hf: type of the original model, or "
          "param_dtype of a model from scratch)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  add_average(command, average_);
  command.add_option("--shard-size", shard_size_, "Maximum size of a weight file (default 5GB)")
      ->type_name("SIZE");
  command
      .add_option("--set", sets_,
                  "With --to-hf: where an adapter's base is, such as checkpoint.init_from=FOLDER")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  add_ranks(command, ranks_,
            "Ranks that write a folder, each its own range (default: cores, up to 8)");
}

void ExportCommand::run() const {
  const engine::ChosenCheckpoint chosen = chosen_checkpoint(path_);
  const std::string& path = chosen.path;
  std::optional<DType> dtype;
  for (const DType known : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (dtype_ == name_of(known)) dtype = known;
  }
  if (!to_folder_.empty()) {
    engine::ExportRequest request{path, to_folder_, dtype};
    request.merge = merge_;
    request.stack_experts = stack_experts_;
    request.average = average_;
    request.ranks = ranks_;
    request.sets = sets_;
    if (!shard_size_.empty()) request.shard_bytes = parse_bytes(shard_size_);
    const engine::ExportSummary summary = engine::export_checkpoint(request);
    fmt::print("{}: {} tensors as {} in {} file{}, {} bytes\n", to_folder_,
               summary.written.num_tensors, name_of(summary.dtype), summary.written.num_files,
               summary.written.num_files == 1 ? "" : "s", summary.written.bytes);
    return;
  }
  if (to_.empty()) throw UsageError("sherd export: expected --to FILE or --to-hf FOLDER.");
  if (dtype == DType::kF16)
    throw UsageError("--dtype f16 needs --to-hf; an HDF5 file supports f32 and bf16.");
  if (!shard_size_.empty()) throw UsageError("--shard-size needs --to-hf.");
  if (merge_) throw UsageError("--merge needs --to-hf.");
  if (stack_experts_) throw UsageError("--stack-experts needs --to-hf.");
  if (ranks_) throw UsageError("--ranks needs --to-hf.");
  if (!sets_.empty()) throw UsageError("--set needs --to-hf.");
  auto& disk = checkpoint::posix_disk();
  checkpoint::Checkpoint checkpoint(disk, path);
  if (average_) checkpoint.exchange_average();
  const auto result = checkpoint::export_file(
      disk, checkpoint, {.to = to_, .dtype = dtype.value_or(DType::kF32), .kinds = {"param"}});
  fmt::print("{}: {} tensors, {} bytes\n", to_, result.num_tensors, result.bytes);
}

}  // namespace

Command inspect_command(CLI::App& program) {
  return make_command<InspectCommand>(program, "inspect", "Show what is in a checkpoint");
}

Command verify_command(CLI::App& program) {
  return make_command<VerifyCommand>(program, "verify", "Check that a checkpoint is whole");
}

Command export_command(CLI::App& program) {
  return make_command<ExportCommand>(program, "export",
                                     "Write the weights to one HDF5 file or a Hugging Face folder");
}

Command eval_command(CLI::App& program) {
  return make_command<EvalCommand>(program, "eval",
                                   "Print the loss over the whole validation split");
}

}  // namespace sherd::main
