#include "engine/main/checkpoint_commands.h"

#include <fmt/format.h>

#include "checkpoint/inspect.h"
#include "checkpoint/interchange/hdf5_export.h"
#include "checkpoint/interchange/safetensors_folder.h"
#include "checkpoint/store/verify.h"
#include "engine/inference/export.h"
#include "engine/main/checkpoint_path.h"
#include "engine/main/command_line.h"
#include "engine/report/byte_size.h"
#include "engine/report/metrics.h"

namespace sherd::main {
namespace {

CLI::App* add(CLI::App& app, const char* name, const char* help, std::string& path) {
  CLI::App* command = app.add_subcommand(name, help);
  command
      ->add_option(
          "checkpoint", path,
          "A checkpoint's folder, or a run's for its newest, e.g. runs/x; runs/x/best: its best")
      ->type_name("CKPT")
      ->required();
  return command;
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
             deep ? fmt::format(", {} bytes compared with their checksums", report.bytes_checked)
                  : " of the right sizes; --deep reads and compares every byte");
}

void evaluate(const engine::TrainedModelRequest& request, bool as_json) {
  const engine::TextLoss result = engine::evaluate_checkpoint(request);
  if (as_json) {
    auto& disk = checkpoint::posix_disk();
    std::int64_t steps = 0;  // of a folder they aren't known
    if (!checkpoint::is_model_folder(disk, request.checkpoint)) {
      steps = checkpoint::Checkpoint(disk, request.checkpoint).manifest().step;
    }
    const engine::EvaluationMetrics line{steps,
                                         result.loss,
                                         result.loss_20_batches,
                                         result.num_tokens,
                                         result.perplexity(),
                                         result.bits_per_byte()};
    fmt::print("{}\n", engine::to_json(line));
    return;
  }
  const std::optional<double> bits = result.bits_per_byte();
  fmt::print("{}: validation loss {:.4f} over {} tokens, perplexity {:.4f}{}\n", request.checkpoint,
             result.loss, result.num_tokens, result.perplexity(),
             bits ? fmt::format(", {:.4f} bits per byte", *bits) : "");
}

}  // namespace

CheckpointCommands::CheckpointCommands(CLI::App& app)
    : inspect_(add(app, "inspect", "Show what is in a checkpoint", path_)),
      verify_(add(app, "verify", "Check that a checkpoint is whole", path_)),
      export_(add(app, "export",
                  "Write the weights for others: one HDF5 file, or a Hugging Face folder", path_)),
      eval_(app.add_subcommand("eval", "Print the loss over the whole validation split")) {
  inspect_->add_flag("--json", json_, "One JSON object instead of a table");
  inspect_->add_flag("--digests", digests_, "With --json: a checksum of every tensor");
  verify_->add_flag("--deep", deep_, "Read every byte and compare it with its checksum");
  CLI::Option* file = export_->add_option("--to", to_, "The HDF5 file to write; must not exist");
  export_->add_option("--to-hf", to_folder_, "A Hugging Face folder to write; must not exist")
      ->type_name("FOLDER")
      ->excludes(file);
  export_->add_flag(
      "--merge", merge_,
      "With --to-hf, of an adapter: the whole model with the adapter in it, not PEFT's files");
  export_
      ->add_option(
          "--dtype", dtype_,
          "f32, bf16 or, for a folder, f16 (f32; a folder's: that of the model it began with, of a "
          "model from scratch mixed_precision.param_dtype)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  export_->add_option("--shard-size", shard_size_, "A folder's largest file of weights (5GB)")
      ->type_name("SIZE");
  add_ranks(*export_, ranks_,
            "Ranks that write a folder, each its range (as many as cores, up to 8)");
  add_trained_model(*eval_, path_, sets_);
  add_ranks(*eval_, ranks_, "Number of ranks (the recipe's)");
  eval_->add_flag("--json", json_, "One JSON object instead of a sentence");
}

void CheckpointCommands::run_chosen() const {
  if (path_.empty()) return;
  const std::string path = checkpoint_path(path_);
  auto& disk = checkpoint::posix_disk();
  if (*verify_) verify(path, deep_);
  if (*inspect_) {
    const checkpoint::Checkpoint checkpoint(disk, path);
    fmt::print("{}", json_ ? checkpoint::inspect_json(checkpoint, digests_) + "\n"
                           : checkpoint::inspect_table(checkpoint));
  }
  if (*eval_) evaluate({path, sets_, ranks_}, json_);
  if (*export_) run_export(path);
}

void CheckpointCommands::run_export(const std::string& path) const {
  std::optional<DType> dtype;
  for (const DType known : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (dtype_ == name_of(known)) dtype = known;
  }
  if (!to_folder_.empty()) {
    engine::ExportRequest request{path, to_folder_, dtype};
    request.merge = merge_;
    request.ranks = ranks_;
    if (!shard_size_.empty()) request.shard_bytes = engine::parse_bytes(shard_size_);
    const engine::ExportSummary summary = engine::export_checkpoint(request);
    fmt::print("{}: {} tensors as {} in {} file{}, {} bytes\n", to_folder_,
               summary.written.num_tensors, name_of(summary.dtype), summary.written.num_files,
               summary.written.num_files == 1 ? "" : "s", summary.written.bytes);
    return;
  }
  if (to_.empty()) throw UsageError("sherd export: expected --to FILE or --to-hf FOLDER.");
  if (dtype == DType::kF16)
    throw UsageError("--dtype f16 is for --to-hf; a file takes f32 or bf16.");
  if (!shard_size_.empty()) throw UsageError("--shard-size is for --to-hf.");
  if (merge_) throw UsageError("--merge is for --to-hf.");
  if (ranks_) throw UsageError("--ranks is for --to-hf.");
  auto& disk = checkpoint::posix_disk();
  const auto result = checkpoint::export_file(
      disk, checkpoint::Checkpoint(disk, path),
      {.to = to_, .dtype = dtype.value_or(DType::kF32), .kinds = {"param"}});
  fmt::print("{}: {} tensors, {} bytes\n", to_, result.num_tensors, result.bytes);
}

}  // namespace sherd::main
