#include "engine/inference/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/error.h"
#include "core/shape_text.h"
#include "engine/huggingface/adapter_folder.h"
#include "engine/huggingface/overlay.h"
#include "engine/inference/elements.h"
#include "engine/inference/same_vocabulary.h"
#include "engine/launch/system_info.h"
#include "engine/recipe/model_meaning.h"
#include "engine/saving/initial_weights.h"

namespace sherd::engine {
namespace {

using huggingface::NamedShape;
using huggingface::ReadElements;

[[noreturn]] void refuse_adapter(const std::string& input) {
  throw UsageError(
      "{}: holds an adapter. The average of A and of B isn't that of B A, so adapters aren't "
      "merged; write whole models with `sherd export --merge` and merge those.",
      input);
}

std::vector<double> weights_of(const MergeRequest& request) {
  const std::size_t count = request.inputs.size();
  if (count < 2) throw UsageError("sherd merge: expected at least two models, found {}.", count);
  std::vector<double> weights = request.weights;
  if (weights.empty()) weights.assign(count, 1.0);
  if (weights.size() != count) {
    throw UsageError("--weights has {} values for {} models; expected one for each.",
                     weights.size(), count);
  }
  for (const double weight : weights) {
    if (std::isfinite(weight) && weight >= 0.0) continue;
    throw UsageError("--weights has {}; expected numbers of at least 0.", weight);
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!(sum > 0.0) || !std::isfinite(sum)) {
    throw UsageError("--weights have the sum {}; expected a number above 0.", sum);
  }
  return weights;
}

TrainedModel open_whole_model(const std::string& input, bool average) {
  const bool is_adapter = huggingface::is_adapter_folder(checkpoint::posix_disk(), input);
  if (is_adapter) refuse_adapter(input);
  TrainedModel model = trained_model({input, {}, 1, {}, average});
  if (model.options.model.adapter.active()) refuse_adapter(input);
  return model;
}

// The first tensor that one of two models lacks or has in another shape.
void require_same_tensors(const TrainedModel& first, const TrainedModel& other) {
  const std::vector<NamedShape> a = model_weights(first.options).parameters;
  const std::vector<NamedShape> b = model_weights(other.options).parameters;
  for (const auto& [mine, theirs, has, lacks] :
       {std::tuple(&a, &b, &first, &other), std::tuple(&b, &a, &other, &first)}) {
    for (const NamedShape& tensor : *mine) {
      const auto found = std::ranges::find(*theirs, tensor.name, &NamedShape::name);
      if (found == theirs->end()) {
        throw UsageError(
            "{}: lacks the parameter {} {}, which {} has; models of one shape can be "
            "merged.",
            lacks->path, tensor.name, shape_text(tensor.shape), has->path);
      }
      if (found->shape == tensor.shape) continue;
      throw UsageError(
          "{}: its parameter {} is {}, and {} in {}; models of one shape can be merged.",
          lacks->path, tensor.name, shape_text(found->shape), shape_text(tensor.shape), has->path);
    }
  }
  SHERD_CHECK(a == b, "{} and {} order their parameters differently", first.path, other.path);
}

void require_same_model(const TrainedModel& first, const TrainedModel& other) {
  require_same_tensors(first, other);
  for (const ModelDifference& one : differences(first.recipe, other.recipe)) {
    throw UsageError("{}: {} is {}, and {} in {}; models of one architecture can be merged.",
                     other.path, one.key, one.b, one.a, first.path);
  }
  require_same_vocabulary(vocabulary_of(first), vocabulary_of(other),
                          "models of one vocabulary can be merged");
}

/// What all writers read.
struct Inputs {
  std::vector<std::string> paths;
  std::vector<double> weights;
  double sum_of_weights = 1.0;
  std::size_t reference = 0;  ///< the input with the largest weight
  std::vector<NamedShape> parameters;
  DType dtype = DType::kF32;                            ///< of the file
  std::vector<std::function<ReadElements()>> elements;  ///< of inputs with a weight above 0
};

/// One writer's.
class MergedElements {
 public:
  explicit MergedElements(std::shared_ptr<const Inputs> inputs) : inputs_(std::move(inputs)) {
    for (const auto& make : inputs_->elements) readers_.push_back(make ? make() : ReadElements());
  }

  void read(int parameter, std::int64_t first, std::int64_t count, float* to) {
    const auto size = static_cast<std::size_t>(count);
    reference_.resize(std::max(reference_.size(), size));
    other_.resize(std::max(other_.size(), size));
    sums_.resize(std::max(sums_.size(), size));
    read_input(inputs_->reference, parameter, first, count, reference_.data());
    std::fill_n(sums_.begin(), count, 0.0);
    for (std::size_t input = 0; input < readers_.size(); ++input) {
      if (input == inputs_->reference || !readers_[input]) continue;
      read_input(input, parameter, first, count, other_.data());
      add(inputs_->weights[input], size);
    }
    for (std::size_t i = 0; i < size; ++i) {
      to[i] = rounded(reference_[i], sums_[i] / inputs_->sum_of_weights);
    }
  }

 private:
  // Without a difference the sign of a zero stays.
  float rounded(float reference, double difference) const {
    if (difference == 0.0) return reference;
    const double merged = static_cast<double>(reference) + difference;
    return inputs_->dtype == DType::kF32 ? static_cast<float>(merged)
                                         : huggingface::rounded_to_odd(merged);
  }

  void add(double weight, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
      const double difference = static_cast<double>(other_[i]) - static_cast<double>(reference_[i]);
      sums_[i] += weight * difference;
    }
  }

  void read_input(std::size_t input, int parameter, std::int64_t first, std::int64_t count,
                  float* to) const {
    readers_[input](parameter, first, count, to);
    for (std::int64_t i = 0; i < count; ++i) {
      if (std::isfinite(to[i])) continue;
      throw DataError("{}: element {} of the parameter {} is {}; weights must be finite",
                      inputs_->paths[input], first + i,
                      inputs_->parameters[static_cast<std::size_t>(parameter)].name, to[i]);
    }
  }

  std::shared_ptr<const Inputs> inputs_;
  std::vector<ReadElements> readers_;  // empty for an input with the weight 0
  std::vector<float> reference_, other_;
  std::vector<double> sums_;
};

// Every writer has a reader of each model, so more models have fewer writers.
std::int64_t num_writers(const MergeRequest& request) {
  constexpr std::int64_t kMostReaders = 8;
  if (request.ranks) return *request.ranks;
  const auto readers = std::max<std::int64_t>(kMostReaders / std::ssize(request.inputs), 1);
  return std::min<std::int64_t>(num_usable_cores(), readers);
}

std::string sources_text(const std::vector<std::string>& paths,
                         const std::vector<double>& weights) {
  std::string text;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    text += fmt::format("{}{} {}", i == 0 ? "" : " + ", weights[i], paths[i]);
  }
  return text;
}

}  // namespace

MergeSummary merge_models(const MergeRequest& request) {
  const std::vector<double> weights = weights_of(request);
  std::vector<TrainedModel> models;
  for (const std::string& input : request.inputs) {
    models.push_back(open_whole_model(input, request.average));
    require_same_model(models.front(), models.back());
  }
  // Layers that predict further tokens are merged if all have them.
  const auto predicts = [&](const TrainedModel& model) {
    return model.checkpoint && model.recipe.mtp.num_layers == models.front().recipe.mtp.num_layers;
  };
  if (!std::ranges::all_of(models, predicts)) models.front().recipe.mtp.num_layers = 0;
  ExportRequest first{request.inputs.front(), request.to, request.dtype, request.shard_bytes};
  first.ranks = num_writers(request);
  huggingface::FolderToWrite folder = exported_folder(first, models.front());
  if (!folder.map) folder.map = huggingface::weight_map(*folder.family, folder.model, true);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> shares = weights;
  for (double& share : shares) share /= sum;
  folder.from = sources_text(request.inputs, shares);

  Inputs inputs{request.inputs, weights, sum, 0, folder.map->ours, folder.dtype, {}};
  inputs.reference = static_cast<std::size_t>(std::ranges::max_element(weights) - weights.begin());
  const int num_readers = folder.num_ranks * static_cast<int>(models.size());
  for (std::size_t i = 0; i < models.size(); ++i) {
    inputs.elements.push_back(weights[i] > 0.0
                                  ? elements_of(models[i], inputs.parameters, num_readers)
                                  : std::function<ReadElements()>());
  }
  const auto shared = std::make_shared<const Inputs>(std::move(inputs));
  folder.make_reader = [shared] {
    const auto elements = std::make_shared<MergedElements>(shared);
    return ReadElements([elements](int parameter, std::int64_t from, std::int64_t count,
                                   float* to) { elements->read(parameter, from, count, to); });
  };
  return {write_exported(std::move(folder), nullptr, "merge"), shares};
}

}  // namespace sherd::engine
