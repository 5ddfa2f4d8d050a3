/// What a hook's command is told about the run: facts in environment variables, and the same facts
/// as one JSON object on its standard input.
///
///   SHERD_EVENT        "event"       start, step, evaluation, save, end or failure
///   SHERD_RUN          "run"         run.name
///   SHERD_OUTPUT_DIR   "output_dir"  absolute
///   SHERD_STEP         "step"        steps done; of a save, those in the checkpoint
///   SHERD_MAX_STEPS    "max_steps"
///   SHERD_LOSS         "loss"        of the last step
///   SHERD_VAL_LOSS     "val_loss"    of the last evaluation; of a save, at its step
///   SHERD_CHECKPOINT   "checkpoint"  absolute: the one that was saved, else the newest
///   SHERD_EXIT_CODE    "exit_code"   of end and failure
///   SHERD_ERROR        "error"       of end and failure: the line that the run ends with
///   SHERD_ATTEMPT      "attempt"     of save: 1, then 2, ... for retries
///
/// Unknown facts are left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::engine {

enum class HookEvent { kStart, kStep, kEvaluation, kSave, kEnd, kFailure };
/// "start", "step", ...
const char* name_of(HookEvent event);

struct HookFacts {
  std::string run, output_dir;
  std::int64_t step = 0, max_steps = 0;
  std::optional<double> loss{}, val_loss{};
  std::string checkpoint{}, error{};
  std::optional<int> exit_code{};
  std::int64_t attempt = 0;  ///< 0: none
};

/// One line, and a newline. Text that isn't UTF-8 has replacement characters; a loss that isn't
/// finite is null.
std::string json_of(HookEvent event, const HookFacts& facts);
/// This process's variables and the facts, as NAME=VALUE. Variables by which mpirun and torchrun
/// describe a process are left out: a command that starts programs of its own isn't that process.
std::vector<std::string> environment_of(HookEvent event, const HookFacts& facts);

}  // namespace sherd::engine
