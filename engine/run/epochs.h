/// What a run says of its data, once they are open.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/data/batcher.h"
#include "engine/recipe/segments.h"

namespace sherd::engine {

/// "3 epochs of 1234 sequences: 232 steps of 16, the last one of 6", or, if the recipe counts
/// steps, "300 steps of 16: 3.9 epochs of 1234 sequences".
std::string epochs_line(const Recipe& recipe, const data::Batcher& batcher);

/// The segments of a run, and the batches of each.
struct RunData {
  const std::vector<Segment>& segments;
  const std::vector<std::shared_ptr<const data::Batcher>>& batches;
};

/// What each text has. Of several segments also the shape of each; of several sources, for each
/// stage, their sequences in a block of 1,024, and for each source its tokens and epochs in the
/// whole run, and how many tokens may be repeated because texts were cut again.
std::string data_lines(const Recipe& recipe, const RunData& data);

/// Errors   DataError if a source would be repeated more often than its max_epochs
void require_few_epochs(const RunData& data, std::int64_t max_steps);

}  // namespace sherd::engine
