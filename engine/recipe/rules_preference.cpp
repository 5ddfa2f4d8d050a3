// Rules of training on preferences (block `preference`).
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kLoss = "preference.loss";

bool all_chat(const Recipe& values) {
  const auto is_chat = [&](const auto& item) {
    return item.format.empty() ? values.data.format == DataFormat::kChat : item.format == "chat";
  };
  const bool has_block = values.data.sources.empty();
  return (!has_block || values.data.format == DataFormat::kChat) &&
         std::ranges::all_of(values.data.sources, is_chat) &&
         std::ranges::all_of(values.data.validation_sets, is_chat);
}

void check_rows(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (!all_chat(values)) {
    recipe.refuse({kLoss, "data.format"},
                  "{} needs rows with two answers to a prompt, or judged ones. Use data.format: "
                  "chat for all data.",
                  kLoss);
  }
  if (recipe.is_set("training.train_on") &&
      values.training.train_on != TrainOnChoice::kCompletion) {
    recipe.refuse({kLoss, "training.train_on"},
                  "{} compares the answers alone, that is, training.train_on: completion. Leave "
                  "training.train_on out.",
                  kLoss);
  }
  if (values.data.unfit == UnfitChoice::kCut) {
    recipe.refuse({kLoss, "data.unfit"},
                  "{} compares whole answers, so no row is cut. Use data.unfit: drop or error, or "
                  "a longer training.seq_length.",
                  kLoss);
  }
}

}  // namespace

void check_preference(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (!values.preference.active()) return;
  check_rows(recipe);
  if (values.checkpoint.init_from.empty() && values.adapter.type == AdapterChoice::kNone) {
    recipe.note(
        "preference.loss trains weights that are drawn at random: checkpoint.init_from names a "
        "fine-tuned model's folder or checkpoint.");
  }
  if (values.parallelism.context_parallel_degree > 1) {
    recipe.refuse({kLoss, "parallelism.context_parallel_degree"},
                  "{} needs an answer's tokens on one rank, and context ranks have parts of them. "
                  "Leave out one of the two.",
                  kLoss);
  }
  for (const auto& [key, value] :
       {std::pair<std::string_view, double>("model.dropout", values.model.dropout),
        {"adapter.dropout", values.adapter.dropout}}) {
    if (value == 0.0) continue;
    recipe.refuse({kLoss, key}, "{} compares with weights without dropout. Use {}: 0.", kLoss, key);
  }
  for (const auto& [key, is_used] :
       {std::pair<std::string_view, bool>("training.z_loss_multiplier",
                                          values.training.z_loss_multiplier > 0.0),
        {"metrics.source_losses", values.metrics.source_losses},
        {"data.stages", !values.data.stages.empty()}}) {
    if (!is_used) continue;
    recipe.refuse({kLoss, key}, "{} can't be combined with {}. Leave out one of the two.", kLoss,
                  key);
  }
}

}  // namespace sherd::engine
