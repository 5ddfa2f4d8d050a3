#include "sherd/model_folder.h"

#include "core/dtype.h"
#include "engine/huggingface/config.h"
#include "engine/inference/export.h"
#include "engine/library/errors.h"
#include "engine/model/parameters.h"
#include "engine/recipe/model_from.h"
#include "engine/saving/checkpoint_path.h"
#include "engine/train/from_recipe.h"

namespace sherd::v0 {
namespace {

ModelInfo info_of(const std::string& folder) {
  const huggingface::ModelConfig config =
      huggingface::read_config(checkpoint::posix_disk(), folder);
  ModelInfo info{.model_type = std::string(config.family->model_type),
                 .num_parameters = model::num_parameters(
                     engine::training_options(engine::recipe_of(config)).model),
                 .dtype = config.dtype ? std::string(name_of(*config.dtype)) : "",
                 .unused = config.unused};
  for (const auto& value : config.values) info.recipe_values.emplace_back(value.key, value.value);
  return info;
}

std::optional<DType> dtype_of(const std::string& name) {
  if (name.empty()) return std::nullopt;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw sherd::UsageError("export: dtype is \"{}\"; expected f32, bf16 or f16.", name);
}

ExportedModel exported(const std::string& checkpoint, const std::string& folder,
                       const ExportOptions& options) {
  const engine::ChosenCheckpoint chosen = engine::choose_checkpoint(checkpoint);
  engine::ExportRequest request{chosen.path, folder, dtype_of(options.dtype)};
  if (options.shard_bytes > 0) request.shard_bytes = options.shard_bytes;
  if (options.ranks > 0) request.ranks = options.ranks;
  request.average = options.average;
  request.merge = options.merge;
  request.handles_signals = false;
  const engine::ExportSummary summary = engine::export_checkpoint(request);
  return {summary.written.num_tensors, summary.written.num_files, summary.written.bytes,
          std::string(name_of(summary.dtype))};
}

}  // namespace

ModelInfo read_model_folder(const std::string& folder) {
  return library::for_user([&] { return info_of(folder); });
}

ExportedModel export_model(const std::string& checkpoint, const std::string& folder,
                           const ExportOptions& options) {
  return library::for_user([&] { return exported(checkpoint, folder, options); });
}

}  // namespace sherd::v0
