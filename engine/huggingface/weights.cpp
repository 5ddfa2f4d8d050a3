#include "engine/huggingface/weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "checkpoint/format/strict_json.h"
#include "core/error.h"
#include "core/shape_text.h"

namespace sherd::huggingface {
namespace {

using checkpoint::printable;
using checkpoint::SafetensorsFolder;
using checkpoint::SafetensorsTensor;

constexpr std::int64_t kReadChunk =
    1 << 18;  ///< elements that are read, converted and copied at a time
constexpr std::string_view kEmbedding = "embedding.token.weight", kHead = "head.weight";

// Files of a model without its head have no prefix.
bool has_prefix(const SafetensorsFolder& folder, const Family& family) {
  const auto at = folder.places().lower_bound(std::string(family.prefix));
  return at != folder.places().end() && at->first.starts_with(family.prefix);
}

// A tensor that a tied model's file may have: the head, whose rows are the embedding's.
int add_tied_head(const SafetensorsFolder& folder, const Family& family, const TensorNames& names,
                  WeightMap& map) {
  const auto is = [](std::string_view name) {
    return [name](const NamedShape& shape) { return shape.name == name; };
  };
  if (std::any_of(map.ours.begin(), map.ours.end(), is(kHead))) return -1;
  const auto embedding = std::find_if(map.ours.begin(), map.ours.end(), is(kEmbedding));
  for (const auto modules : family.modules) {
    for (const Module& module : modules) {
      const std::string name = names.in_folder(std::string(module.theirs) + ".weight");
      if (module.ours != "head" || !folder.places().contains(name)) continue;
      map.theirs.push_back({name, embedding->shape});
      return static_cast<int>(map.theirs.size()) - 1;
    }
  }
  return -1;
}

// The pattern's {} is any number.
bool matches(std::string_view name, std::string_view pattern) {
  const std::size_t at = pattern.find("{}");
  if (at == std::string_view::npos) return name == pattern;
  const std::string_view end = pattern.substr(at + 2);
  if (name.size() <= at + end.size() || !name.starts_with(pattern.substr(0, at)) ||
      !name.ends_with(end)) {
    return false;
  }
  const std::string_view number = name.substr(at, name.size() - at - end.size());
  return number.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_buffer(const Family& family, std::string_view name) {
  if (name.starts_with(family.prefix)) name.remove_prefix(family.prefix.size());
  return std::any_of(family.buffers.begin(), family.buffers.end(),
                     [&](std::string_view pattern) { return matches(name, pattern); });
}

// Whether the folder's experts are tensors of all experts, as transformers 5 has them in memory.
bool stacks_experts(const SafetensorsFolder& folder, const Family& family) {
  for (const auto modules : family.modules) {
    for (const Module& module : modules) {
      if (module.stacked.empty() || !is_of_one_expert(module.part)) continue;
      for (const auto& [name, place] : folder.places()) {
        const std::string_view pattern = module.stacked;
        if (name.ends_with(pattern.substr(pattern.find("{}") + 2))) return true;
      }
    }
  }
  return false;
}

// What is filled from boxes, a chunk at a time.
class ChunkReader {
 public:
  using Replaced = std::vector<const std::vector<float>*>;
  ChunkReader(checkpoint::Disk& disk, const SafetensorsFolder& folder, const CodeBlocks& codes,
              const WeightMap& map, const Replaced& replaced, Tensor buffer)
      : folder_(folder),
        map_(map),
        replaced_(replaced),
        reader_(disk, folder),
        coded_(disk, folder, codes) {
    SHERD_CHECK(buffer.bytes() >= 3 * kReadChunk * 4, "a buffer of {} bytes", buffer.bytes());
    out_ = static_cast<float*>(buffer.data);
    run_ = out_ + kReadChunk;
    scratch_ = reinterpret_cast<std::uint16_t*>(run_ + kReadChunk);
  }

  /// Elements [first, first + count) of a parameter, at most kReadChunk of them.
  float* fill(const std::vector<Source>& sources, std::int64_t first, std::int64_t count) {
    fill_from(sources, first, count, out_, run_,
              [this](int theirs, std::int64_t from, std::int64_t number, float* to) {
                if (const auto* own = replaced_[static_cast<std::size_t>(theirs)]) {
                  std::copy_n(own->begin() + from, number, to);
                  return;
                }
                read(map_.theirs[static_cast<std::size_t>(theirs)].name, from, number, to);
              });
    return out_;
  }

  /// Compares what fill() left with the same elements of another tensor.
  void compare(const std::string& name, std::int64_t first, std::int64_t count) {
    read(name, first, count, run_);
    if (std::memcmp(out_, run_, static_cast<std::size_t>(count) * sizeof(float)) == 0) return;
    throw DataError(
        "{}: holds the head {} with other values than the embedding's, but the model's head is "
        "tied "
        "to its embedding (tie_word_embeddings)",
        folder_.path(), name);
  }

  /// Of all rows of a matrix of `numel` elements.
  std::vector<float> mean_row(const std::vector<Source>& sources, std::int64_t numel,
                              std::int64_t columns) {
    std::vector<double> sums(static_cast<std::size_t>(columns));
    for (std::int64_t first = 0; first < numel; first += kReadChunk) {
      const std::int64_t count = std::min(kReadChunk, numel - first);
      const float* values = fill(sources, first, count);
      for (std::int64_t i = 0; i < count; ++i) {
        sums[static_cast<std::size_t>((first + i) % columns)] += static_cast<double>(values[i]);
      }
    }
    std::vector<float> mean;
    for (const double sum : sums) {
      mean.push_back(static_cast<float>(sum / static_cast<double>(numel / columns)));
    }
    return mean;
  }

  std::int64_t bytes_read() const { return reader_.bytes_read() + coded_.bytes_read(); }

 private:
  void read(const std::string& name, std::int64_t first, std::int64_t count, float* to) {
    auto* const bytes = reinterpret_cast<std::uint8_t*>(scratch_);
    if (coded_.has_blocks(name)) return coded_.read_blocks(name, first, count, to, bytes);
    const SafetensorsFolder::Place& place = folder_.places().at(name);
    if (coded_.has(folder_.tensor(place))) {
      coded_.read(name, first, count, to, bytes);
    } else {
      reader_.read(place, first, count, to, scratch_);
    }
  }

  const SafetensorsFolder& folder_;
  const WeightMap& map_;
  const Replaced& replaced_;
  checkpoint::SafetensorsReader reader_;
  CodedWeights coded_;
  float *out_, *run_;
  std::uint16_t* scratch_;
};

}  // namespace

FolderWeights::FolderWeights(checkpoint::Disk& disk, const std::string& folder,
                             const ModelWeights& model)
    : FolderWeights(disk, folder, model, read_config(disk, folder)) {}

FolderWeights::FolderWeights(checkpoint::Disk& disk, const std::string& folder,
                             const ModelWeights& model, const ModelConfig& config,
                             std::shared_ptr<const Overlay> overlay)
    : disk_(disk),
      folder_(disk, folder),
      family_(config.family),
      names_(folder_, config.whole),
      codes_(config.codes),
      prediction_layers_(config.prediction_layers),
      overlay_(std::move(overlay)) {
  if (const std::string layers = value_of(config, "model.num_layers"); !layers.empty()) {
    layers_ = std::stoll(layers);
  }
  ModelWeights stored = as_stored(model, config);
  stored.upright_experts = config.codes.mxfp4;
  stored.stacks_experts = stacks_experts(folder_, *family_);
  map_ = weight_map(*family_, stored, names_.has_parts() || has_prefix(folder_, *family_));
  for (NamedShape& theirs : map_.theirs) theirs.name = names_.in_folder(std::move(theirs.name));
  tied_head_ = add_tied_head(folder_, *family_, names_, map_);
  find_replaced(stored);
  check_folder();
}

void FolderWeights::find_replaced(const ModelWeights& stored) {
  replaced_.resize(map_.theirs.size());
  if (!overlay_) return;
  const WeightMap in_text =
      weight_map(*family_, stored, true);  // the same tensors, in the same order
  for (std::size_t i = 0; i < in_text.theirs.size(); ++i) {
    const auto found = overlay_->replaced.find(in_text.theirs[i].name);
    if (found != overlay_->replaced.end()) replaced_[i] = &found->second;
  }
}

// With as many rows of the vocabulary as the folder's own model has.
ModelWeights FolderWeights::as_stored(ModelWeights model, const ModelConfig& config) const {
  if (!model.adds_tokens) return model;
  const auto vocabulary =
      std::ranges::find(config.values, std::string("model.vocab_size"), &ConfigValue::key);
  SHERD_CHECK(vocabulary != config.values.end(), "{} without a vocabulary", config.path);
  const std::int64_t rows = std::stoll(vocabulary->value);
  for (NamedShape& ours : model.parameters) {
    if (overlay_ && overlay_->replaced_ours.contains(ours.name)) continue;
    if (ours.name == kEmbedding || ours.name == kHead) {
      ours.shape[0] = std::min(ours.shape[0], rows);
    }
  }
  return model;
}

bool FolderWeights::is_of_prediction(std::string_view name) const {
  for (std::int64_t i = 0; i < prediction_layers_; ++i) {
    if (name.starts_with(fmt::format("{}layers.{}.", family_->prefix, layers_ + i))) return true;
  }
  return prediction_layers_ > 0 && name.starts_with(fmt::format("{}mtp_", family_->prefix));
}

void FolderWeights::check_folder() const {
  const CodedWeights coded(disk_, folder_, codes_);
  std::set<std::string_view> expected;
  std::vector<std::string> scales;
  for (std::size_t i = 0; i < map_.theirs.size(); ++i) {
    const NamedShape& theirs = map_.theirs[i];
    expected.insert(theirs.name);
    if (is_replaced(static_cast<int>(i))) continue;
    if (coded.has_blocks(theirs.name)) {
      coded.check_blocks(theirs.name, theirs.shape);
      for (std::string& name : CodedWeights::names_of_blocks(theirs.name)) {
        scales.push_back(std::move(name));
      }
      continue;
    }
    const SafetensorsTensor* tensor = folder_.find(theirs.name);
    if (!tensor) {
      throw DataError("{}: lacks tensor \"{}\" {}, which the model has", folder_.path(),
                      theirs.name, shape_text(theirs.shape));
    }
    if (tensor->shape != theirs.shape) {
      throw DataError("{}: tensor \"{}\" is {}; the model's is {}", folder_.path(), theirs.name,
                      shape_text(tensor->shape), shape_text(theirs.shape));
    }
    if (coded.has(*tensor)) {
      coded.check(*tensor);
      scales.push_back(CodedWeights::scale_of(theirs.name));
      continue;
    }
    if (!tensor->dtype()) {
      throw DataError("{}: tensor \"{}\" is of type {}; F32, BF16 and F16 are read", folder_.path(),
                      theirs.name, printable(tensor->type));
    }
  }
  expected.insert(scales.begin(), scales.end());
  std::string extra;
  int num_extra = 0;
  for (const auto& [name, place] : folder_.places()) {
    if (expected.contains(name)) continue;
    const std::optional<std::string> of_text = names_.of_text(name);
    if (!of_text || is_buffer(*family_, *of_text) || is_of_prediction(*of_text)) continue;
    if (++num_extra <= 3)
      extra += fmt::format("{}\"{}\"", extra.empty() ? "" : ", ", printable(name));
  }
  if (num_extra == 0) return;
  throw DataError("{}: holds {}{}, which the model lacks", folder_.path(), extra,
                  num_extra > 3 ? fmt::format(" and {} more tensors", num_extra - 3) : "");
}

void FolderWeights::add_deltas(const std::string& ours, float* values, std::int64_t first,
                               std::int64_t count) const {
  if (!overlay_) return;
  const auto found = overlay_->deltas.find(ours);
  if (found == overlay_->deltas.end()) return;
  for (const MatrixDelta& delta : found->second) {
    delta.add_to(values, first, count, overlay_->rounds_to_odd);
  }
}

FolderWeights::Statistics FolderWeights::load(const sharding::State& wanted, Tensor buffer,
                                              const sharding::CopyState& copy) const {
  std::map<std::string_view, int> numbers;
  for (std::size_t i = 0; i < map_.ours.size(); ++i) {
    numbers.emplace(map_.ours[i].name, static_cast<int>(i));
  }
  std::vector<std::vector<Source>> sources(map_.ours.size());
  for (const Link& link : map_.links) {
    sources[static_cast<std::size_t>(link.ours)].push_back({link.theirs, link.box});
  }
  ChunkReader chunks(disk_, folder_, codes_, map_, replaced_, buffer);
  std::map<std::size_t, std::vector<float>> means;
  for (const sharding::StatePiece& piece : wanted.pieces) {
    const sharding::StateTensor& tensor = wanted.tensors[static_cast<std::size_t>(piece.tensor)];
    SHERD_CHECK(tensor.dtype == DType::kF32, "{} {} from a folder", name_of(tensor.dtype),
                tensor.name);
    const auto number = static_cast<std::size_t>(numbers.at(tensor.name));
    auto* to = piece.data.as<float>();
    const sharding::Band& band = piece.band;
    for (std::int64_t at = 0, count = 0; at < piece.count; at += count) {
      const std::int64_t element = piece.first_element + at;
      const std::int64_t first = sharding::element_of_tensor(tensor, band, element);
      count = std::min(kReadChunk, piece.count - at);
      if (!band.is_whole()) count = std::min(count, band.columns - element % band.columns);
      const NamedShape& stored = map_.ours[number];
      const float* chunk = nullptr;
      if (first < stored.numel()) {
        count = std::min(count, stored.numel() - first);
        float* values = chunks.fill(sources[number], first, count);
        add_deltas(tensor.name, values, first, count);
        chunk = values;
      } else {
        const std::int64_t columns = stored.shape[1], column = first % columns;
        std::vector<float>& mean = means[number];
        if (mean.empty()) mean = chunks.mean_row(sources[number], stored.numel(), columns);
        count = std::min(count, columns - column);
        chunk = mean.data() + column;
      }
      const bool has_own_embedding = overlay_ && overlay_->replaced_ours.contains(tensor.name);
      if (tied_head_ >= 0 && tensor.name == kEmbedding && first < stored.numel() &&
          !has_own_embedding) {
        chunks.compare(map_.theirs[static_cast<std::size_t>(tied_head_)].name, first, count);
      }
      const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
      if (copy) {
        copy(chunk, to + at, bytes);
      } else {
        std::memcpy(to + at, chunk, static_cast<std::size_t>(bytes));
      }
    }
  }
  return {chunks.bytes_read()};
}

}  // namespace sherd::huggingface
