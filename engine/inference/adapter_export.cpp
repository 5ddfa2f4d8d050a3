#include "engine/inference/adapter_export.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include "checkpoint/reader.h"
#include "engine/huggingface/config.h"
#include "engine/huggingface/overlay.h"
#include "engine/model/adapter.h"
#include "engine/saving/base_model.h"
#include "engine/saving/checkpointing.h"
#include "engine/saving/initial_adapter.h"
#include "engine/saving/initial_weights.h"
#include "engine/saving/run_state.h"
#include "engine/train/layout/sharding_plan.h"
#include "engine/train/model_shape.h"
#include "kernels/nf4.h"

namespace sherd::engine {
namespace {

using huggingface::NamedShape;
using Values = std::map<std::string, std::vector<float>>;

std::vector<char> reading_buffer() {
  return std::vector<char>(static_cast<std::size_t>(checkpoint_reading_buffer().bytes()));
}
Tensor view_of(std::vector<char>& buffer) {
  return {buffer.data(), DType::kU8, std::ssize(buffer)};
}

// Values as they are once they have been NF4.
void pass_through_nf4(std::vector<float>& values) {
  const std::int64_t numel = std::ssize(values), blocks = kernels::nf4_blocks(numel);
  HeapAllocator memory;
  const auto buffer = [&](const char* name, DType dtype, std::int64_t count) {
    return memory.acquire({name, Category::kWorkspace, dtype, count});
  };
  const Buffer codes = buffer("codes", DType::kU8, (numel + 1) / 2);
  const Buffer scales = buffer("scales", DType::kF32, blocks);
  const Buffer scale_codes = buffer("scale_codes", DType::kU8, blocks);
  const Buffer ranges = buffer("ranges", DType::kF32, kernels::nf4_ranges(numel));
  const Tensor tensor{values.data(), DType::kF32, numel};
  const auto stream = make_cpu_compute_stream({});
  kernels::nf4_encode(*stream, tensor, codes.tensor(), scales.tensor());
  kernels::nf4_encode_scales(*stream, scales.tensor(), scale_codes.tensor(), ranges.tensor());
  kernels::nf4_decode(*stream, {codes.tensor(), scale_codes.tensor(), ranges.tensor(), 0}, tensor);
  stream->synchronize();
}

// All that the checkpoint holds of parameters, which is what was trained.
Values trained_values(const TrainedModel& trained) {
  Values values;
  sharding::State wanted;
  for (sharding::StateTensor& tensor : state_tensors(trained.options)) {
    if (tensor.kind != "param") continue;
    std::vector<float>& memory = values[tensor.name];
    memory.resize(static_cast<std::size_t>(tensor.numel()));
    wanted.pieces.push_back({static_cast<int>(wanted.tensors.size()),
                             0,
                             tensor.numel(),
                             {memory.data(), DType::kF32, tensor.numel()}});
    wanted.tensors.push_back(std::move(tensor));
  }
  std::vector<char> buffer = reading_buffer();
  checkpoint::load(*trained.checkpoint, wanted, checkpoint::Match::kListedKinds, view_of(buffer));
  return values;
}

/// W + s B A of some rows of one parameter.
struct MergedPart {
  std::int64_t first_row = 0, rows = 0;
  const float *a = nullptr, *b = nullptr;
};

/// What all ranks read.
class MergedModel {
 public:
  MergedModel(const TrainedModel& trained, const std::vector<NamedShape>& parameters, DType dtype)
      : parameters(parameters),
        dtype(dtype),
        rank(trained.options.model.adapter.rank),
        scale(trained.options.model.adapter.scale),
        values(trained_values(trained)),
        base(trained.options, trained.recipe.checkpoint.init_from) {
    for (const NamedShape& ours : parameters) {
      if (rests_in_four_bits(trained.options, ours.name, ours.shape)) {
        in_four_bits.insert(ours.name);
      }
    }
    const std::string& path = trained.recipe.checkpoint.init_from;
    require_same_base(*trained.checkpoint, digest_of_base(base, trained.options), path);
    const model::ModelShape& shape = trained.options.model;
    for (std::int64_t block = 0; block < shape.num_layers; ++block) {
      for (const huggingface::AdapterKind& kind : adapter_weights(trained.recipe).kinds) {
        if (kind.experts == 0 || shape.has_experts(block)) add_parts(block, kind);
      }
    }
  }
  MergedModel(const MergedModel&) = delete;  // parts point into values
  MergedModel& operator=(const MergedModel&) = delete;

  // A part for each expert, if they are experts.
  void add_parts(std::int64_t block, const huggingface::AdapterKind& kind) {
    const std::string prefix = fmt::format("block.{}.", block);
    const float* a = values.at(prefix + kind.target + ".lora_a").data();
    const float* b = values.at(prefix + kind.target + ".lora_b").data();
    std::vector<MergedPart>& own = parts[prefix + kind.site + ".weight"];
    for (std::int64_t e = 0; e < std::max<std::int64_t>(1, kind.experts); ++e) {
      own.push_back({e * kind.site_rows + kind.first_row, kind.rows, a + e * rank * kind.inputs,
                     b + e * kind.rows * rank});
    }
  }

  const std::vector<NamedShape> parameters;
  const DType dtype;
  const std::int64_t rank;
  const double scale;
  const Values values;
  const BaseModel base;
  std::map<std::string, std::vector<MergedPart>> parts;
  std::set<std::string> in_four_bits;
};

/// One rank's.
class MergedReader {
 public:
  explicit MergedReader(std::shared_ptr<const MergedModel> model) : model_(std::move(model)) {}

  void read(int parameter, std::int64_t first, std::int64_t count, float* to) {
    const NamedShape& ours = model_->parameters[static_cast<std::size_t>(parameter)];
    if (const auto found = model_->values.find(ours.name); found != model_->values.end()) {
      std::copy_n(found->second.begin() + first, count, to);
      return;
    }
    if (model_->in_four_bits.contains(ours.name)) {
      std::copy_n(through_nf4(ours).begin() + first, count, to);
    } else {
      load(ours, first, count, to);
    }
    const auto parts = model_->parts.find(ours.name);
    if (parts == model_->parts.end()) return;
    for (const MergedPart& part : parts->second) add(part, ours.shape[1], first, count, to);
  }

 private:
  void load(const NamedShape& ours, std::int64_t first, std::int64_t count, float* to) {
    model_->base.load({{{ours.name, "param", ours.shape, DType::kF32}},
                       {{0, first, count, {to, DType::kF32, count}}}},
                      view_of(reading_), {});
  }

  // What the adapter was trained beside.
  const std::vector<float>& through_nf4(const NamedShape& ours) {
    if (quantised_name_ == ours.name) return quantised_;
    quantised_.resize(static_cast<std::size_t>(ours.numel()));
    load(ours, 0, ours.numel(), quantised_.data());
    pass_through_nf4(quantised_);
    quantised_name_ = ours.name;
    return quantised_;
  }

  void add(const MergedPart& part, std::int64_t columns, std::int64_t first, std::int64_t count,
           float* to) const {
    const std::int64_t begin = std::max(first, part.first_row * columns);
    const std::int64_t end = std::min(first + count, (part.first_row + part.rows) * columns);
    for (std::int64_t i = begin; i < end; ++i) {
      const float* b = part.b + (i / columns - part.first_row) * model_->rank;
      const float* a = part.a + i % columns;
      double sum = 0.0;
      for (std::int64_t k = 0; k < model_->rank; ++k) {
        sum += static_cast<double>(b[k]) * static_cast<double>(a[k * columns]);
      }
      const double merged = static_cast<double>(to[i - first]) + model_->scale * sum;
      to[i - first] = model_->dtype == DType::kF32 ? static_cast<float>(merged)
                                                   : huggingface::rounded_to_odd(merged);
    }
  }

  std::shared_ptr<const MergedModel> model_;
  std::vector<char> reading_ = reading_buffer();
  std::string quantised_name_;
  std::vector<float> quantised_;
};

}  // namespace

huggingface::AdapterWeights adapter_weights(const Recipe& recipe) {
  const AdapterKeys& adapter = recipe.adapter;
  huggingface::AdapterWeights weights = adapter_kinds(model_shape(recipe));
  weights.alpha = adapter.alpha;
  weights.dropout = adapter.dropout;
  weights.rslora = adapter.rslora;
  weights.base = recipe.checkpoint.init_from;
  return weights;
}

namespace {

// PEFT takes these names for the experts, which it has in one tensor, and drops such adapters.
void refuse_what_peft_drops(const TrainedModel& trained, const huggingface::Family& family) {
  if (trained.recipe.moe.num_experts == 0 || !family.peft_takes_mlp_for_experts) return;
  for (const std::string& target : trained.recipe.adapter.targets) {
    if (!target.starts_with("mlp.")) continue;
    throw UsageError(
        "PEFT takes an adapter of {} in models of type {} for one of the experts, and drops it; "
        "export with --merge",
        target, family.model_type);
  }
}

}  // namespace

huggingface::FolderToWrite adapter_folder(const TrainedModel& trained,
                                          const huggingface::FolderToWrite& model, DType dtype,
                                          bool base_has_parts) {
  refuse_what_peft_drops(trained, *model.family);
  huggingface::AdapterWeights weights = adapter_weights(trained.recipe);
  weights.base_has_parts = base_has_parts;
  huggingface::AdapterMap adapter = huggingface::adapter_map(*model.family, model.model, weights);
  huggingface::FolderToWrite folder;
  folder.to = model.to;
  folder.dtype = dtype;
  folder.shard_bytes = std::numeric_limits<std::int64_t>::max();  // PEFT reads one file
  folder.family = model.family;
  folder.weights_name = "adapter_model";
  folder.map = std::move(adapter.weights);
  folder.files["adapter_config.json"] = std::move(adapter.config);
  folder.read_back = true;
  for (const auto& [name, text] : model.files) {
    if (name != huggingface::kConfigName) folder.files[name] = text;
  }
  return folder;
}

std::function<huggingface::ReadElements()> merged_elements(
    const TrainedModel& trained, const std::vector<NamedShape>& parameters, DType dtype) {
  const auto model = std::make_shared<const MergedModel>(trained, parameters, dtype);
  return [model] {
    const auto reader = std::make_shared<MergedReader>(model);
    return huggingface::ReadElements(
        [reader](int parameter, std::int64_t first, std::int64_t count, float* to) {
          reader->read(parameter, first, count, to);
        });
  };
}

}  // namespace sherd::engine
