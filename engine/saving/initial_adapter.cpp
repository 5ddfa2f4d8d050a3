#include "engine/saving/initial_adapter.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "core/error.h"
#include "core/shape_text.h"
#include "engine/huggingface/adapter_folder.h"
#include "engine/huggingface/config.h"
#include "engine/model/adapter.h"
#include "engine/saving/initial_weights.h"

namespace sherd::engine {
namespace {

using huggingface::AdapterFolder;
using huggingface::Link;
using huggingface::NamedShape;
using Values = std::map<std::string, std::vector<float>>;

// Names in the file by those that our own export would have.
std::map<std::string, std::string> names_in_file(const AdapterFolder& folder) {
  constexpr const char* kRoot = "base_model.model.";
  std::map<std::string, std::string> names;
  for (const huggingface::AdapterPair& pair : folder.pairs()) {
    names[kRoot + pair.module + ".lora_A.weight"] = pair.a;
    names[kRoot + pair.module + ".lora_B.weight"] = pair.b;
  }
  for (const huggingface::WholeTensor& tensor : folder.whole_tensors()) {
    names[kRoot + tensor.name] = tensor.in_file;
  }
  return names;
}

// All of ours that the file has.
Values values_of(const AdapterFolder& folder, const huggingface::WeightMap& map) {
  const auto names = names_in_file(folder);
  Values values;
  std::map<std::string, std::int64_t> filled;
  for (std::size_t i = 0; i < map.theirs.size(); ++i) {
    const NamedShape& theirs = map.theirs[i];
    const auto name = names.find(theirs.name);
    if (name == names.end()) continue;  // a second name of a module, maybe
    if (folder.shape_of(name->second) != theirs.shape) {
      throw DataError("{}: tensor \"{}\" is {}; the model's would be {}", folder.path(),
                      name->second, shape_text(folder.shape_of(name->second)),
                      shape_text(theirs.shape));
    }
    const std::vector<float> from = folder.read(name->second);
    for (const Link& link : map.links) {
      if (link.theirs != static_cast<int>(i)) continue;
      const NamedShape& ours = map.ours[static_cast<std::size_t>(link.ours)];
      std::vector<float>& to = values[ours.name];
      to.resize(static_cast<std::size_t>(ours.numel()));
      filled[ours.name] += link.box.numel();
      for_each_run(link.box, 0, ours.numel(), ours.numel(), [&](const huggingface::Run& run) {
        for (std::int64_t k = 0; k < run.count; ++k) {
          to[static_cast<std::size_t>(run.to + k * run.to_stride)] =
              from[static_cast<std::size_t>(run.from + k)];
        }
      });
    }
  }
  for (const NamedShape& ours : map.ours) {
    if (filled[ours.name] >= ours.numel()) continue;
    throw DataError("{}: has no initial values for {} of the run's adapter", folder.path(),
                    ours.name);
  }
  return values;
}

void copy_pieces(const Values& values, const sharding::State& wanted,
                 const sharding::CopyState& copy) {
  for (const sharding::StatePiece& piece : wanted.pieces) {
    const sharding::StateTensor& tensor = wanted.tensors[static_cast<std::size_t>(piece.tensor)];
    const auto found = values.find(tensor.name);
    if (found == values.end()) continue;
    auto* to = piece.data.as<float>();
    const std::int64_t row = piece.band.is_whole() ? piece.count : piece.band.columns;
    for (std::int64_t at = 0, count = 0; at < piece.count; at += count) {
      const std::int64_t element = piece.first_element + at;
      count = std::min(piece.count - at, piece.band.is_whole() ? piece.count : row - element % row);
      const float* from =
          found->second.data() + sharding::element_of_tensor(tensor, piece.band, element);
      const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
      if (copy) {
        copy(from, to + at, bytes);
      } else {
        std::memcpy(to + at, from, static_cast<std::size_t>(bytes));
      }
    }
  }
}

}  // namespace

huggingface::AdapterWeights adapter_kinds(const model::ModelShape& shape) {
  huggingface::AdapterWeights weights;
  weights.modules = shape.adapter.trained_modules;
  weights.num_blocks = shape.num_layers;
  weights.rank = shape.adapter.rank;
  weights.gated = shape.gated();
  weights.tied = shape.tied;
  const std::vector<model::Site> sites = model::largest_sites(shape);
  for (const model::AdapterTarget& target : model::possible_targets(shape)) {
    if (!shape.adapter.has_target(target.name)) continue;
    const auto site = std::ranges::find(sites, target.site, &model::Site::id);
    weights.kinds.push_back({target.name, site->name, site->rows / target.pairs(), target.first_row,
                             target.rows, target.inputs, target.experts});
  }
  return weights;
}

void load_first_adapter(checkpoint::Disk& disk, const std::string& folder, const std::string& base,
                        const TrainingOptions& options, const sharding::State& wanted,
                        const sharding::CopyState& copy) {
  const AdapterFolder adapter(disk, folder);
  const huggingface::AdapterMap map =
      huggingface::adapter_map(*huggingface::read_config(disk, base).family, model_weights(options),
                               adapter_kinds(options.model));
  copy_pieces(values_of(adapter, map.weights), wanted, copy);
}

}  // namespace sherd::engine
