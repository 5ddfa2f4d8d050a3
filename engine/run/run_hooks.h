/// A run's hooks: connects engine/hooks to the recipe, the output folder and the signals.
#pragma once

#include <exception>
#include <memory>

#include "engine/hooks/hooks.h"
#include "engine/recipe/recipe.h"
#include "engine/report/output_folder.h"
#include "engine/report/progress.h"

namespace sherd::engine {

/// Null if the recipe has no commands. For process 0; `output` and `progress` must outlive it.
///
/// After a stop signal, waiting for commands ends shortly before checkpoint.stop_deadline does. The
/// alarm for that deadline is then off, so the process ends by itself, with its own message.
std::unique_ptr<Hooks> run_hooks(const Recipe& recipe, const OutputFolder& output,
                                 Progress& progress);

/// The last event of a run that ends with `error`; null: with success. Does nothing without hooks.
void end_hooks(Hooks* hooks, const std::exception_ptr& error);

}  // namespace sherd::engine
