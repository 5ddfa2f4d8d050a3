#include "engine/saving/base_model.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/reader.h"
#include "core/error.h"
#include "engine/model/adapter.h"
#include "engine/saving/initial_weights.h"
#include "engine/saving/run_state.h"
#include "engine/train/units/frozen_weights.h"

namespace sherd::engine {
namespace {

using nlohmann::json;

constexpr const char* kBase = "base";

// Every parameter of the model without its adapters.
std::vector<sharding::StateTensor> tensors_of_model(const TrainingOptions& options) {
  std::vector<sharding::StateTensor> tensors;
  for (const huggingface::NamedShape& parameter : model_weights(options).parameters) {
    tensors.push_back({parameter.name, "param", parameter.shape, DType::kF32});
  }
  return tensors;
}

// The same pieces, counted in another list of tensors; those of tensors that it hasn't are left
// out.
sharding::State counted_in(const std::vector<sharding::StateTensor>& tensors,
                           const sharding::State& state) {
  sharding::State counted{tensors, {}};
  for (sharding::StatePiece piece : state.pieces) {
    const std::string& name = state.tensors[static_cast<std::size_t>(piece.tensor)].name;
    const auto found = std::ranges::find(tensors, name, &sharding::StateTensor::name);
    if (found == tensors.end()) continue;
    piece.tensor = static_cast<int>(found - tensors.begin());
    counted.pieces.push_back(piece);
  }
  return counted;
}

}  // namespace

BaseModel::BaseModel(const TrainingOptions& options, const std::string& path,
                     checkpoint::Disk& disk)
    : tensors_(tensors_of_model(options)) {
  if (!checkpoint::exists(disk, path)) {
    throw UsageError(
        "the weights of this adapter's base model are missing: there is no {}. Set their location "
        "with --set checkpoint.init_from=FOLDER.",
        path);
  }
  if (checkpoint::is_model_folder(disk, path)) {
    folder_ = std::make_shared<const huggingface::FolderWeights>(
        open_folder_weights(disk, path, options));
    return;
  }
  checkpoint_ = std::make_shared<const checkpoint::Checkpoint>(disk, path);
  require_held(*checkpoint_);
  require_whole_model(*checkpoint_);
  checkpoint::check_match(*checkpoint_, tensors_, checkpoint::Match::kListedKinds);
}

void BaseModel::load(const sharding::State& wanted, Tensor reading,
                     const sharding::CopyState& copy) const {
  const sharding::State own = counted_in(tensors_, wanted);
  if (folder_) {
    folder_->load(own, reading, copy);
  } else {
    checkpoint::load(*checkpoint_, own, checkpoint::Match::kListedKinds, reading, copy);
  }
}

namespace {

// Of trained parameters `trained`, then all frozen ones. The ranks tell one another their digests:
// also one that couldn't read, or the others would wait for it.
std::string load_parts(const BaseModel& base, const sharding::State& trained, ShardedModel& model,
                       Tensor reading, const sharding::CopyState& copy) {
  std::exception_ptr problem;
  const auto read = [&](const sharding::State& wanted, const sharding::CopyState& copy_state) {
    if (problem) return;
    try {
      base.load(wanted, reading, copy_state);
    } catch (const DataError&) {
      problem = std::current_exception();
    }
  };
  read(trained, copy);
  std::string digest =
      model.frozen().load([&](const sharding::State& wanted) { read(wanted, {}); });
  if (problem) std::rethrow_exception(problem);
  return digest;
}

}  // namespace

std::string load_base_model(const BaseModel& base, const TrainingOptions& options,
                            ShardedModel& model, Tensor reading, const sharding::CopyState& copy) {
  return load_parts(base, weights(options, model, Pieces::kHeld), model, reading, copy);
}

std::string load_frozen(const BaseModel& base, ShardedModel& model, Tensor reading) {
  return load_parts(base, {}, model, reading, {});
}

std::string digest_of_base(const BaseModel& base, const TrainingOptions& options) {
  constexpr std::int64_t kChunk = 1 << 20;
  std::vector<float> values(kChunk);
  std::vector<char> reading(static_cast<std::size_t>(checkpoint::kBlockBytes));
  std::uint64_t digest = 0;
  for (const sharding::StateTensor& tensor : base.tensors()) {
    if (model::is_trained(options.model, tensor.name)) continue;
    for (std::int64_t first = 0; first < tensor.numel(); first += kChunk) {
      const std::int64_t count = std::min(kChunk, tensor.numel() - first);
      base.load({{tensor}, {{0, first, count, {values.data(), DType::kF32, count}}}},
                {reading.data(), DType::kU8, std::ssize(reading)}, {});
      digest += digest_of_frozen(tensor.name, first, values.data(), count);
    }
  }
  return digest_text(digest);
}

void require_same_base(const checkpoint::Checkpoint& checkpoint, const std::string& digest,
                       const std::string& path) {
  const json base = checkpoint.manifest().global->value(kBase, json::object());
  const std::string saved =
      base.is_object() && base.contains("digest") && base["digest"].is_string()
          ? base["digest"].get<std::string>()
          : "missing";
  if (saved == digest) return;
  throw UsageError(
      "{}: its adapter is for another model: the digest of {} is {}, the checkpoint's {}. Set "
      "checkpoint.init_from to the model that it was trained on.",
      checkpoint.path(), path, digest, saved);
}

void require_held(const checkpoint::Checkpoint& checkpoint) {
  if (checkpoint.hold()) return;
  throw DataError(
      "{}: its run removed it (checkpoint.keep_last) before it could be read; choose another.",
      checkpoint.path());
}

void require_whole_model(const checkpoint::Checkpoint& checkpoint) {
  if (!checkpoint.manifest().global->contains(kBase)) return;
  throw UsageError("{}: holds an adapter, not a whole model; `sherd export --merge` writes one.",
                   checkpoint.path());
}

}  // namespace sherd::engine
