// Rules of distillation (block `distillation`).
#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kTeacher = "distillation.teacher";

bool shapes_differ(const Recipe& values) {
  return std::ranges::any_of(values.data.stages, [](const DataStage& stage) {
    return stage.seq_length > 0 || stage.global_batch_size > 0 || stage.micro_batch_size > 0;
  });
}

}  // namespace

void check_distillation(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const DistillationKeys& keys = values.distillation;
  if (!keys.active()) return;
  if (values.model.vocab_size > 0 && keys.top_k > values.model.vocab_size) {
    recipe.refuse({"distillation.top_k", "model.vocab_size"},
                  "distillation.top_k is {}, and the vocabulary has {} ids. Use at most {}.",
                  keys.top_k, values.model.vocab_size, values.model.vocab_size);
  }
  if (shapes_differ(values)) {
    recipe.refuse({kTeacher, "data.stages"},
                  "{}: a teacher's file has samples of one length and one batch size. Leave "
                  "seq_length, global_batch_size and micro_batch_size out of data.stages.",
                  kTeacher);
  }
  for (const auto& [key, is_used] :
       {std::pair<std::string_view, bool>("preference.loss", values.preference.active()),
        {"training.z_loss_multiplier", values.training.z_loss_multiplier > 0.0},
        // A rewind skips data, and the teacher's file ends with the run's.
        {"bad_steps.rewind_after", values.bad_steps.rewind_after > 0}}) {
    if (!is_used) continue;
    recipe.refuse({kTeacher, key}, "{} can't be combined with {}. Leave out one of the two.",
                  kTeacher, key);
  }
}

}  // namespace sherd::engine
