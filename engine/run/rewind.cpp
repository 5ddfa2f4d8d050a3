#include "engine/run/rewind.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "checkpoint/writer.h"

namespace sherd::engine {
namespace {

// Steps done in the newest checkpoint that opens and isn't newer than `limit`; -1: there is none.
std::int64_t newest_until(const std::string& directory, std::int64_t limit, checkpoint::Disk& disk,
                          sharding::Processes* processes) {
  const checkpoint::Newest newest = checkpoint::newest_checkpoint(disk, directory, limit + 1);
  const std::int64_t found = newest.checkpoint ? newest.checkpoint->manifest().step : -1;
  if (!processes) return found;
  return std::stoll(processes->links().all_gather("the rewind", std::to_string(found))[0]);
}

// The skips of a run that goes back to `step` and skips `num_steps` steps of data from there on.
std::vector<data::Skip> with_rewind(std::vector<data::Skip> skips, std::int64_t step,
                                    std::int64_t num_steps,
                                    const std::vector<std::int64_t>& segments) {
  for (data::Skip& skip : skips) {
    const std::int64_t first = *std::prev(std::ranges::upper_bound(segments, skip.at_step));
    skip.at_step = std::min(skip.at_step, std::max(step, first));
  }
  bool is_rest = false;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::int64_t begin = std::max(step, segments[i]);
    const std::int64_t end =
        i + 1 < segments.size() ? std::min(step + num_steps, segments[i + 1]) : step + num_steps;
    if (begin >= end) continue;
    skips.push_back({begin, end - begin, std::exchange(is_rest, true)});
  }
  std::ranges::stable_sort(skips, {}, &data::Skip::at_step);
  return skips;
}

}  // namespace

Rewind rewind_of(const Recipe& recipe, const Continuation& from,
                 const std::vector<std::int64_t>& segments, checkpoint::Disk& disk,
                 sharding::Processes* processes) {
  const std::int64_t first_bad = *from.before_bad_steps;
  const std::int64_t back = recipe.bad_steps.rewind_steps;
  const std::string directory = recipe.run.output_dir + "/checkpoints";
  const std::int64_t step = newest_until(directory, first_bad - back, disk, processes);
  if (step < 0) {
    throw TrainingError(
        "steps {} to {} were bad, and {} has no checkpoint of step {} or before to go back to. "
        "Lower checkpoint.interval, or raise checkpoint.keep_last.",
        first_bad + 1, from.steps_done, directory, first_bad - back);
  }
  const std::int64_t own = recipe.bad_steps.skip_data_steps;
  const std::int64_t skipped = own > 0 ? own : from.steps_done - step;
  return {.checkpoint = directory + "/" + checkpoint::step_directory_name(step),
          .step = step,
          .skips = with_rewind(from.skips, step, skipped, segments),
          .metrics = {step, from.steps_done, skipped},
          .text = fmt::format("steps {} to {} were bad: back to step {}, without its next {} steps "
                              "of data",
                              first_bad + 1, from.steps_done, step, skipped)};
}

void remove_later_checkpoints(const std::string& directory, std::int64_t step,
                              checkpoint::Disk& disk, const checkpoint::OutputLock* lock) {
  for (const std::int64_t later : checkpoint::committed_steps(disk, directory)) {
    if (later <= step) break;
    const std::string path = directory + "/" + checkpoint::step_directory_name(later);
    std::optional<checkpoint::Checkpoint> found;
    try {
      found.emplace(disk, path);
    } catch (const DataError&) {  // damaged
    }
    const bool is_free = found && found->claim();
    // A run may go back to the same step several times.
    const std::string tag = fmt::format("before-{}-{}", step, checkpoint::make_save_uuid());
    if (lock) lock->check();
    is_free ? checkpoint::remove_checkpoint(disk, directory, later, tag)
            : static_cast<void>(checkpoint::set_aside(disk, directory, later, tag));
  }
}

}  // namespace sherd::engine
