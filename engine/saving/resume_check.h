/// Whether a checkpoint belongs to the run that resumes from it.
///
/// A checkpoint keeps, under "run" of its manifest, every recipe value that may not change (the
/// field table says which: engine/recipe/fields.h) and the fingerprint of its data, as strings.
/// Values that an older checkpoint lacks there come from the full recipe that it keeps.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "engine/data/batcher.h"
#include "engine/recipe/recipe.h"
#include "optim/loss_scaler.h"

namespace sherd::engine {

using DataFingerprints = std::vector<data::StageFingerprint>;

/// What a checkpoint records about its run.
std::shared_ptr<const nlohmann::json> run_settings(const Recipe& recipe,
                                                   const DataFingerprints& data);

/// Whether a manifest records other data, in stages that its steps have begun.
bool is_of_other_data(const nlohmann::json& global, const DataFingerprints& data);

/// Two runs, compared key by key.
struct ResumeCheck {
  struct Difference {
    std::string key, saved, now;
  };
  std::vector<Difference> refused;  ///< keys that must match
  std::vector<Difference> changed;  ///< keys that may change

  bool has_changed(std::string_view key) const;
};

/// `global` is a manifest's; `settings` the run's own. Keys that aren't in `settings` aren't
/// compared. Of the data, only the stages that begin before step `steps_done` are.
ResumeCheck compare_runs(const nlohmann::json& global, const nlohmann::json& settings,
                         std::int64_t steps_done = std::numeric_limits<std::int64_t>::max());

/// The model's keys alone, for weights that start a new run: all of them `changed`, none refused.
ResumeCheck compare_models(const nlohmann::json& global, const nlohmann::json& settings);

/// Of models of characters: where the ids of `characters` first mean another character than those of
/// the manifest's run, in words; "" if they don't, or if it records none.
std::string other_characters(const nlohmann::json& global, std::span<const char32_t> characters);

/// Errors   UsageError if a key that must match doesn't: every such key, both values, what to do.
void require_same_run(const ResumeCheck& check, const std::string& checkpoint);

/// For averages.type: mean, after so many updates.
/// Errors   UsageError if averages.start_step has changed to one that has passed: how many weights the
///          checkpoint's mean is of would be miscounted.
void require_same_mean(const ResumeCheck& check, std::int64_t start_step, std::int64_t num_updates,
                       const std::string& checkpoint);

/// Lines for the log, "  optimizer.lr: 0.001 (checkpoint: 0.0003)", below one heading line; ""
/// without changes.
std::string changes_text(const ResumeCheck& check);

/// The scaler's state after a resume. A changed mode restarts with the recipe's scale. Static mode
/// always has the recipe's scale. Dynamic mode continues, within the recipe's min_scale and
/// hysteresis.
optim::LossScaler::State resumed_scaler(const optim::LossScaler::State& saved,
                                        const optim::LossScaling& options,
                                        const ResumeCheck& check);

}  // namespace sherd::engine
