#include <fmt/format.h>

#include <charconv>

#include "core/byte_size.h"
#include "engine/inference/merge.h"
#include "engine/main/chosen_checkpoint.h"
#include "engine/main/command_line.h"
#include "engine/main/commands.h"

namespace sherd::main {
namespace {

std::vector<double> numbers_of(const std::string& list) {
  std::vector<double> numbers;
  for (std::size_t begin = 0; begin <= list.size() && !list.empty();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    double number = 0.0;
    const auto [last, error] = std::from_chars(list.data() + begin, list.data() + end, number);
    if (error != std::errc() || last != list.data() + end) {
      throw UsageError(
          "--weights has \"{}\"; expected numbers with commas between them: 0.5,0.3,0.2",
          list.substr(begin, end - begin));
    }
    numbers.push_back(number);
    begin = end + 1;
  }
  return numbers;
}

class MergeCommand {
 public:
  explicit MergeCommand(CLI::App& command);
  void run() const;

 private:
  std::vector<std::string> inputs_;
  std::string weights_, to_, dtype_, shard_size_;
  bool average_ = false;
  std::optional<std::int64_t> ranks_;
};

MergeCommand::MergeCommand(CLI::App& command) {
  command
      .add_option("models", inputs_,
                  "Checkpoint folders, run folders for their newest, or Hugging Face folders")
      ->type_name("MODEL")
      ->required();
  command
      .add_option("--weights", weights_,
                  "One for each model, e.g. 0.5,0.3,0.2; divided by their sum (default: equal)")
      ->type_name("W,W,...");
  command.add_option("--output", to_, "The Hugging Face folder to write; must not exist")
      ->type_name("FOLDER")
      ->required();
  command
      .add_option("--dtype", dtype_,
                  "f32, bf16 or f16 (default: type of the first model, as in an export)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  add_average(command, average_);
  command.add_option("--shard-size", shard_size_, "Maximum size of a weight file (default 5GB)")
      ->type_name("SIZE");
  add_ranks(command, ranks_,
            "Ranks that write the folder, each its own range (default: cores, up "
            "to 8 divided by the number of models)");
}

void MergeCommand::run() const {
  std::vector<engine::ChosenCheckpoint> chosen;
  engine::MergeRequest request;
  for (const std::string& input : inputs_) {
    chosen.push_back(chosen_checkpoint(input));
    request.inputs.push_back(chosen.back().path);
  }
  for (const DType known : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (dtype_ == name_of(known)) request.dtype = known;
  }
  request.weights = numbers_of(weights_);
  request.to = to_;
  request.average = average_;
  request.ranks = ranks_;
  if (!shard_size_.empty()) request.shard_bytes = parse_bytes(shard_size_);
  const engine::MergeSummary merged = engine::merge_models(request);
  const auto& written = merged.folder.written;
  fmt::print("{}: {} tensors as {} in {} file{}, {} bytes, the sum of\n", to_, written.num_tensors,
             name_of(merged.folder.dtype), written.num_files, written.num_files == 1 ? "" : "s",
             written.bytes);
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    fmt::print("  {:.6g} x {}\n", merged.weights[i], request.inputs[i]);
  }
}

}  // namespace

Command merge_command(CLI::App& program) {
  return make_command<MergeCommand>(program, "merge",
                                    "Average models and write a Hugging Face folder");
}

}  // namespace sherd::main
