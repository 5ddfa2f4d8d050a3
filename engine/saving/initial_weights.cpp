#include "engine/saving/initial_weights.h"

#include "engine/model/adapter.h"
#include "engine/model/parameters.h"
#include "engine/model/shape.h"
#include "kernels/rotary_frequencies.h"

namespace sherd::engine {

huggingface::ModelWeights model_weights(const TrainingOptions& options) {
  const model::ModelShape& shape = options.model;
  huggingface::ModelWeights weights;
  for (const UnitSpec& unit : model::parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (model::is_adapter(parameter.name)) continue;
      weights.parameters.push_back({parameter.name, parameter.shape});
    }
  }
  weights.adds_tokens = options.adds_tokens;
  weights.query_heads = shape.query_heads;
  weights.kv_heads = shape.kv_heads;
  weights.head_width = shape.head_width();
  weights.rotated_tail = shape.latent.rotated;
  weights.experts = shape.moe.experts;
  weights.rotary_width = shape.num_rotary_tables() > 0
                             ? kernels::rotated_width(shape.rotary[0], shape.head_width())
                             : shape.head_width();
  return weights;
}

huggingface::FolderWeights open_folder_weights(checkpoint::Disk& disk, const std::string& folder,
                                               const TrainingOptions& options) {
  return {disk, folder, model_weights(options)};
}

}  // namespace sherd::engine
