#include "engine/recipe/fields.h"

namespace sherd::engine {
namespace {

// clang-format off
const std::vector<Block> kBlocks = {
    {"run", "The run's name, output folder and devices."},
    {"model", "The shape of the decoder-only transformer."},
    {"moe", "Mixtures of experts (docs/experts.md)."},
    {"adapter", "Low-rank matrices that are trained next to frozen weights."},
    {"data", "The training and validation data."},
    {"training", "Batch size, length of the run, evaluations and samples."},
    {"parallelism", "The number of ranks, and what they divide among themselves."},
    {"zero_optimization", "What is sharded over ranks, and how they exchange it."},
    {"mixed_precision", "Types for computation, communication and storage."},
    {"loss_scaling", "Scaling of the loss, so that small f16 gradients don't underflow."},
    {"activation_checkpointing", "What is recomputed instead of stored."},
    {"optimizer", "The update."},
    {"lr_scheduler", "The learning rate over the steps."},
    {"gradient_clipping", "The limit of the gradient's norm."},
    {"bad_steps", "Steps that aren't applied because their loss or gradient looks wrong."},
    {"averages", "An average of the weights, for evaluation and export."},
    {"checkpoint", "What is saved to disk, and where a run begins."},
    {"memory", "Memory limits."},
    {"metrics", "What is reported."},
    {"hooks", "Commands that a run starts at its events."},
    {"preference", "Training on preferences between answers (docs/preferences.md)."},
    {"distillation", "Learning from another model's probabilities (docs/distillation.md)."},
    {"diloco", "Replicas that train apart (docs/local_updates.md)."},
    {"powersgd", "Low-rank sums of gradients over replicas (docs/power_sgd.md)."},
    {"dgc", "Sparse sums of gradients over replicas (docs/dgc.md)."},
    {"mtp", "Multi-token prediction (docs/mtp.md)."},
};
// clang-format on

}  // namespace

const std::vector<Block>& recipe_blocks() {
  return kBlocks;
}

}  // namespace sherd::engine
