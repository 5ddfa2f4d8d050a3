#include "engine/main/checkpoint_commands.h"

#include <fmt/format.h>

#include "checkpoint/hdf5_export.h"
#include "checkpoint/inspect.h"
#include "checkpoint/verify.h"
#include "engine/metrics.h"

namespace sherd::main {
namespace {

CLI::App* add(CLI::App& app, const char* name, const char* help, std::string& path) {
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("checkpoint", path, "A checkpoint's folder, e.g. runs/x/checkpoints/step-...")
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
  const engine::EvaluationResult result = engine::evaluate_checkpoint(request);
  if (as_json) {
    const checkpoint::Checkpoint checkpoint(checkpoint::posix_disk(), request.checkpoint);
    const engine::EvaluationMetrics line{checkpoint.manifest().step - 1, result.loss,
                                         result.loss_20_batches, result.num_tokens};
    fmt::print("{}\n", engine::to_json(line));
    return;
  }
  fmt::print("{}: validation loss {:.4f} over {} tokens\n", request.checkpoint, result.loss,
             result.num_tokens);
}

}  // namespace

CheckpointCommands::CheckpointCommands(CLI::App& app)
    : inspect_(add(app, "inspect", "Show what is in a checkpoint", path_)),
      verify_(add(app, "verify", "Check that a checkpoint is whole", path_)),
      export_(add(app, "export", "Write whole tensors into one plain HDF5 file", path_)),
      eval_(add(app, "eval", "Print the loss over the whole validation split", path_)),
      sample_(add(app, "sample", "Print text from the model", path_)) {
  inspect_->add_flag("--json", json_, "One JSON object instead of a table");
  inspect_->add_flag("--digests", digests_, "With --json: a checksum of every tensor");
  verify_->add_flag("--deep", deep_, "Read every byte and compare it with its checksum");
  export_->add_option("--to", to_, "The file to write; must not exist")->required();
  export_->add_option("--dtype", dtype_, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
  for (CLI::App* command : {eval_, sample_}) {
    command->add_option("--ranks", ranks_, "Number of ranks (eval: the recipe's; sample: 1)")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 20));
    command
        ->add_option("--set", sets_,
                     "Override a key of the checkpoint's recipe, such as data.validation_path")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
  }
  eval_->add_flag("--json", json_, "One JSON object instead of a sentence");
  sample_->add_option("--prompt", prompt_, "What the text begins with");
  sample_->add_option("--tokens", sampling_.num_tokens, "Tokens to add (200)")
      ->check(CLI::Range(1, 1 << 30));
  sample_->add_option("--temperature", sampling_.temperature, "0: the likeliest token (0.8)")
      ->check(CLI::Range(0.0, 100.0));
  sample_->add_option("--top-k", sampling_.top_k, "Draw among the k likeliest; 0: all (0)")
      ->check(CLI::Range(0, 1 << 30));
  sample_->add_option("--seed", sampling_.seed, "Another seed, another text (0)");
}

void CheckpointCommands::run_chosen() const {
  auto& disk = checkpoint::posix_disk();
  if (*verify_) verify(path_, deep_);
  if (*inspect_) {
    const checkpoint::Checkpoint checkpoint(disk, path_);
    fmt::print("{}", json_ ? checkpoint::inspect_json(checkpoint, digests_) + "\n"
                           : checkpoint::inspect_table(checkpoint));
  }
  if (*eval_) evaluate({path_, sets_, ranks_}, json_);
  if (*sample_) {
    const std::string text =
        engine::sample_checkpoint({path_, sets_, ranks_.value_or(1)}, prompt_, sampling_);
    fmt::print("{}\n", text);
  }
  if (*export_) {
    const checkpoint::Checkpoint checkpoint(disk, path_);
    const auto result = checkpoint::export_file(
        disk, checkpoint,
        {.to = to_, .dtype = dtype_ == "f32" ? DType::kF32 : DType::kBF16, .kinds = {"param"}});
    fmt::print("{}: {} tensors, {} bytes\n", to_, result.num_tensors, result.bytes);
  }
}

}  // namespace sherd::main
