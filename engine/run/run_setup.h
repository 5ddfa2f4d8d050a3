/// What a prepared run needs before its ranks start: files in its folder, and how to start them.
/// The program's runs and a library's trainers begin with the same calls.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/launch/launch.h"
#include "engine/report/output_folder.h"
#include "engine/run/prepare.h"
#include "engine/trainer/trainer.h"

namespace sherd::engine {

/// Makes the folder of checkpoints if the run saves. For the process that writes.
void prepare_output(const PreparedRun& run, const OutputFolder& output);

/// Copies what the run needs from the folders of its model and tokenizer, in case they are removed.
/// For the process that writes, when the run has loaded: a refused resume changes nothing.
void keep_model_files(const Recipe& recipe, const OutputFolder& output);

/// For state on disk.
std::string offload_folder(const Recipe& recipe);

/// Makes the folder for state on disk, and says what a user should know about it. Does nothing if
/// no state is there.
void prepare_offload(const PreparedRun& run, checkpoint::Disk& disk,
                     const std::function<void(const std::string&)>& say);

/// Ranks in planned memory for one segment. `run` and `disk` must outlive them.
LaunchOptions planned_launch(const PreparedRun& run, std::size_t segment,
                             std::shared_ptr<const Machine> machine, checkpoint::Disk& disk);

/// The trainer of one segment. The owner adds what it is asked and told: asked_to_stop,
/// asked_to_save, on_message, on_save.
TrainerOptions segment_trainer(const PreparedRun& run, std::size_t segment,
                               const CheckpointOptions& checkpoints);

/// Steps done in the checkpoint that the run probably resumes from; 0: none. This tells which
/// segment to begin with. If it turns out to be another one, that one follows.
std::int64_t probable_steps(const Recipe& recipe, checkpoint::Disk& disk);

}  // namespace sherd::engine
