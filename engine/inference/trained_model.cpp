#include "engine/inference/trained_model.h"
#include "engine/train/units/frozen_weights.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/reader.h"
#include "engine/data/utf8.h"
#include "engine/huggingface/adapter_folder.h"
#include "engine/huggingface/model_files.h"
#include "engine/launch/device.h"
#include "engine/launch/process_machine.h"
#include "engine/saving/base_model.h"
#include "engine/saving/checkpointing.h"
#include "engine/saving/initial_weights.h"
#include "engine/saving/run_state.h"
#include "engine/train/from_recipe.h"

namespace sherd::engine {
namespace {

using checkpoint::Checkpoint;

std::string stored_recipe(const Checkpoint& checkpoint) {
  const auto found = checkpoint.manifest().global->find("recipe");
  if (found == checkpoint.manifest().global->end() || !found->is_string()) {
    throw DataError("{}: holds no recipe, so what model this is can't be known.",
                    checkpoint.manifest_path());
  }
  return found->get<std::string>();
}

/// Where the model is that a checkpoint's adapter is for; empty: it holds a whole model.
std::string stored_base(const Checkpoint& checkpoint) {
  const nlohmann::json base = checkpoint.manifest().global->value("base", nlohmann::json::object());
  const auto path = base.is_object() ? base.find("path") : base.end();
  return path != base.end() && path->is_string() ? path->get<std::string>() : "";
}

/// Nothing is traced here; and older programs counted these steps from 0, which is refused now.
std::string without_traced_steps(std::string recipe) {
  constexpr std::string_view kKey = "trace_steps: [";
  const std::size_t begin = recipe.find(kKey);
  if (begin == recipe.npos) return recipe;
  const std::size_t values = begin + kKey.size();
  return recipe.erase(values, recipe.find(']', values) - values);
}

/// Of a model of characters; empty for any other.
std::vector<char32_t> stored_vocabulary(const Checkpoint& checkpoint, const Recipe& recipe) {
  const std::string file = checkpoint.manifest_path();
  const nlohmann::json stored =
      checkpoint.manifest().global->value("vocabulary", nlohmann::json::array());
  const auto expected = static_cast<std::size_t>(
      recipe.data.format == DataFormat::kChars ? recipe.model.vocab_size : 0);
  if (!stored.is_array() || stored.size() != expected) {
    throw DataError("{}: its vocabulary has {} characters; its recipe has {}.", file,
                    stored.is_array() ? stored.size() : 0, expected);
  }
  std::vector<char32_t> vocabulary;
  std::int64_t before = -1;
  for (const auto& character : stored) {
    const std::uint64_t value =
        character.is_number_unsigned() ? character.get<std::uint64_t>() : data::kNumCodePoints;
    if (value >= data::kNumCodePoints || static_cast<std::int64_t>(value) <= before) {
      throw DataError("{}: its vocabulary isn't an ascending list of characters.", file);
    }
    before = static_cast<std::int64_t>(value);
    vocabulary.push_back(static_cast<char32_t>(value));
  }
  return vocabulary;
}

/// The recipe is what the file says; the tensors are what it holds. Compared before anything is as
/// large as the recipe says, cheap counts first: a list of all tensors may be too long itself.
void check_recipe(const Checkpoint& checkpoint, const Recipe& recipe) {
  const auto num_tensors = static_cast<std::int64_t>(checkpoint.manifest().tensors.size());
  if (recipe.model.num_layers > num_tensors) {
    throw DataError("{}: its recipe has {} layers, but it holds {} tensors.",
                    checkpoint.manifest_path(), recipe.model.num_layers, num_tensors);
  }
  std::vector<sharding::StateTensor> wanted = state_tensors(training_options(recipe), 1);
  std::erase_if(wanted, [](const auto& tensor) { return tensor.kind != "param"; });
  checkpoint::check_match(checkpoint, wanted, checkpoint::Match::kListedKinds);
}

/// The recipe's relative paths, found from wherever we are: they are relative to the folder in
/// which the run was started. Paths of the command line are left alone.
void find_files(Recipe& recipe, const Checkpoint& checkpoint,
                const std::vector<std::string>& sets) {
  namespace fs = std::filesystem;
  const auto found = checkpoint.manifest().global->find("folder");
  if (found == checkpoint.manifest().global->end() || !found->is_string()) return;
  const fs::path folder = found->get<std::string>();
  const auto is_set = [&](const std::string& key) {
    return std::any_of(sets.begin(), sets.end(),
                       [&](const std::string& set) { return set.starts_with(key + "="); });
  };
  Recipe::Data& data = recipe.data;
  std::vector<std::pair<std::string, std::string*>> paths = {
      {"data.path", &data.path},
      {"data.validation_path", &data.validation_path},
      {"data.tokenizer", &data.tokenizer},
      {"checkpoint.init_from", &recipe.checkpoint.init_from}};
  for (DataSource& source : data.sources) paths.emplace_back("data.sources", &source.path);
  for (TaskFile& task : recipe.training.tasks) paths.emplace_back("training.tasks", &task.path);
  for (ValidationSet& set : data.validation_sets) {
    paths.emplace_back("data.validation_sets", &set.path);
  }
  for (const auto& [key, path] : paths) {
    if (path->empty() || is_set(key) || fs::path(*path).is_absolute()) continue;
    const fs::path there = folder / *path;
    std::error_code error;
    const bool is_glob = path->find_first_of("*?[{") != std::string::npos;
    if (fs::exists(is_glob ? folder : there, error)) *path = there.string();
  }
}

}  // namespace

std::string kept_beside(const Checkpoint& checkpoint) {
  const std::filesystem::path folder = std::filesystem::absolute(checkpoint.path());
  return huggingface::kept_folder(folder.parent_path().parent_path().string());
}

namespace {

/// The tokenizer's files that the run has kept beside its checkpoints, where its folder is gone.
void find_tokenizer(Recipe::Data& data, const Checkpoint& checkpoint) {
  std::error_code error;
  if (data.tokenizer.empty() || std::filesystem::exists(data.tokenizer, error)) return;
  const std::string kept = kept_beside(checkpoint);
  if (std::filesystem::exists(kept + "/tokenizer.json", error)) data.tokenizer = kept;
}

TrainedModel model_of_checkpoint(const Checkpoint& checkpoint, const TrainedModelRequest& request) {
  RecipeRequest recipe;
  recipe.path = "the recipe in " + checkpoint.path();
  recipe.text = without_traced_steps(stored_recipe(checkpoint));
  recipe.is_kept = true;
  recipe.sets = {"memory.device_memory=", "memory.on_exceed=abort",
                 "model.from=", "training.weight_hash_interval=0"};  // for training only
  // What the recipe names may be the adapter that the run began with.
  if (const std::string base = stored_base(checkpoint); !base.empty()) {
    recipe.sets.push_back("checkpoint.init_from=" + base);
  }
  const Recipe written = resolve_recipe(recipe).values;
  const Recipe::Training& training = written.training;
  // Whoever uses a model has all of it.
  recipe.sets.emplace_back("parallelism.pipeline_parallel_degree=1");
  recipe.sets.emplace_back("parallelism.tensor_parallel_degree=1");
  recipe.sets.emplace_back("parallelism.sequence_parallel=false");
  recipe.sets.emplace_back("parallelism.context_parallel_degree=1");
  recipe.sets.emplace_back("parallelism.expert_parallel_degree=1");
  recipe.sets.emplace_back("parallelism.parameter_servers=0");
  recipe.sets.emplace_back("parallelism.publish_delay=0");
  if (request.ranks) {
    // No step is taken, so the batch of one follows from the number of ranks.
    recipe.ranks = request.ranks;
    const auto batch = *request.ranks * training.micro_batch_size;
    recipe.sets.insert(recipe.sets.end(),
                       {"parallelism.data_parallel_replicate_degree=1",
                        "parallelism.batch_groups=1", "training.gradient_accumulation_steps=1",
                        fmt::format("training.global_batch_size={}", batch)});
  }
  for (const std::string& set : request.sets) {
    for (const char* axis : {"pipeline_", "tensor_", "sequence_", "context_"}) {
      if (!set.starts_with(std::string("parallelism.") + axis)) continue;
      throw UsageError(
          "--set {}: pipeline, tensor and context ranks are for training only; here the model "
          "isn't cut.",
          set);
    }
    recipe.sets.push_back(set);
    // Separate files to validate with take the place of a share of the training text.
    if (set.starts_with("data.validation_path=")) {
      recipe.sets.insert(recipe.sets.end(), {"data.validation_fraction=0", "data.sources=[]",
                                             "data.stages=[]", "data.validation_sets=[]"});
      recipe.reads_data = false;  // so data.path needn't be set
    }
  }
  TrainedModel model;
  model.recipe = resolve_recipe(recipe).values;
  model.batch_size = training.global_batch_size;
  if (!request.ranks && written.world_size() != checkpoint.num_shards()) {
    throw DataError("{}: its recipe has {} ranks, but {} wrote it.", checkpoint.manifest_path(),
                    written.world_size(), checkpoint.num_shards());
  }
  check_recipe(checkpoint, model.recipe);
  model.vocabulary = stored_vocabulary(checkpoint, model.recipe);
  find_files(model.recipe, checkpoint, request.sets);
  find_tokenizer(model.recipe.data, checkpoint);
  return model;
}

/// A Hugging Face folder as it stands: what its config.json says, and nothing to train with.
/// `tokenizer`: the folder of another one; empty: its own.
TrainedModel model_of_folder(const TrainedModelRequest& request, const std::string& folder,
                             const std::string& tokenizer = "") {
  constexpr std::int64_t kLongest = 1024;  // of a context, unless somebody asks for another
  RecipeRequest recipe;
  recipe.path = request.checkpoint;
  recipe.text =
      "data: {format: text}\n"
      "training: {seq_length: 1, micro_batch_size: 1, max_steps: 1}\n";
  recipe.reads_data = false;
  recipe.ranks = request.ranks.value_or(1);
  recipe.sets = {"model.from=" + folder, "data.validation_fraction=0"};
  if (!tokenizer.empty()) recipe.sets.push_back("data.tokenizer=" + tokenizer);
  const std::int64_t longest = resolve_recipe(recipe).values.model.max_seq_length;
  recipe.sets.push_back(fmt::format("training.seq_length={}", std::min(longest, kLongest)));
  recipe.sets.insert(recipe.sets.end(), request.sets.begin(), request.sets.end());
  TrainedModel model;
  model.recipe = resolve_recipe(recipe).values;
  model.batch_size = model.recipe.training.global_batch_size;
  return model;
}

std::string base_of(const huggingface::AdapterFolder& adapter, const TrainedModelRequest& request) {
  constexpr std::string_view kSet = "model.from=";
  std::string base = adapter.base();
  for (const std::string& set : request.sets) {
    if (set.starts_with(kSet)) base = set.substr(kSet.size());
  }
  if (!base.empty() && checkpoint::exists(checkpoint::posix_disk(), base)) return base;
  throw UsageError(
      "{}: the adapter is for {}, which isn't a folder here. Set its location with --set "
      "model.from=FOLDER.",
      adapter.path(), base.empty() ? "a model that it doesn't name" : base);
}

/// An adapter's folder: the model that it is for, with the adapter in it.
TrainedModel model_of_adapter(const TrainedModelRequest& request) {
  auto& disk = checkpoint::posix_disk();
  const huggingface::AdapterFolder adapter(disk, request.checkpoint);
  const std::string base = base_of(adapter, request);
  const bool has_tokenizer = checkpoint::exists(disk, adapter.path() + "/tokenizer.json");
  TrainedModel model = model_of_folder(request, base, has_tokenizer ? adapter.path() : "");
  model.base = base;
  const huggingface::ModelConfig config = huggingface::read_config(disk, base);
  const std::int64_t rows = huggingface::vocabulary_rows(adapter, *config.family);
  const bool adds_tokens = rows > model.recipe.model.vocab_size;
  if (adds_tokens) model.recipe.model.vocab_size = rows;
  model.options = training_options(model.recipe);
  model.options.adds_tokens = adds_tokens;
  const huggingface::ModelWeights weights = model_weights(model.options);
  model.overlay = huggingface::overlay_of(adapter, *config.family, weights);
  model.folder = std::make_shared<const huggingface::FolderWeights>(disk, base, weights, config,
                                                                    model.overlay);
  return model;
}

// All tensors were compared with the recipe's (check_recipe). Those of layers that only training uses
// aren't read.
void load_checkpoint(const Checkpoint& checkpoint, const sharding::State& wanted, Tensor buffer,
                     const sharding::CopyState& copy) {
  checkpoint::load(checkpoint, wanted, checkpoint::Match::kNone, buffer, copy);
}

}  // namespace

TrainedModel trained_model(const TrainedModelRequest& request) {
  auto& disk = checkpoint::posix_disk();
  const bool is_adapter = huggingface::is_adapter_folder(disk, request.checkpoint);
  const bool is_folder = !is_adapter && checkpoint::is_model_folder(disk, request.checkpoint);
  std::shared_ptr<const Checkpoint> checkpoint;
  if (!is_folder && !is_adapter) {
    auto opened = std::make_shared<Checkpoint>(disk, request.checkpoint);
    if (request.average) opened->exchange_average();
    checkpoint = std::move(opened);
  } else if (request.average) {
    throw UsageError(
        "{}: is a folder of weights, without an average; --average needs a checkpoint.",
        request.checkpoint);
  }
  TrainedModel model = is_adapter  ? model_of_adapter(request)
                       : is_folder ? model_of_folder(request, request.checkpoint)
                                   : model_of_checkpoint(*checkpoint, request);
  model.path = request.checkpoint;
  model.handles_signals = request.handles_signals;
  model.if_too_large = request.if_too_large;
  model.checkpoint = checkpoint;
  if (!is_adapter) model.options = training_options(model.recipe);
  model.options.compression = nullptr;  // of gradients
  model.options.placement.has_gradients = false;
  model.options.optimizer.offload = {};
  model.options.model.residual_slots = 0;
  model.options.model.frozen.clear();  // the checkpoint holds them as it holds all others
  model.options.model.teacher = {};
  model.options.model.mtp_layers = 0;
  model.options.model.z_loss = 0.0;  // which, like attention's maxima, is of training steps only
  model.options.model.max_attention_logit = false;
  model.options.qk_clip_threshold = 0.0;
  model.options.model.recompute = Recompute::kFull;  // nothing is kept for a backward
  // An adapter's base comes from another folder, and a folder has no values for tokens that were
  // added to it.
  model.options.draws_weights = model.options.model.adapter.active() || model.options.adds_tokens;
  if (is_folder) {
    model.folder = std::make_shared<const huggingface::FolderWeights>(
        open_folder_weights(disk, request.checkpoint, model.options));
  }
  return model;
}

std::shared_ptr<const Machine> machine_of(const TrainedModelRequest& request,
                                          const TrainedModel& trained) {
  if (request.machine) return request.machine;
  return request.processes ? process_machine(request.processes, trained.recipe)
                           : choose_machine(trained.recipe);
}

void load_weights(const TrainedModel& trained, ShardedModel& model) {
  const Buffer reading = model.rank().acquire(checkpoint_reading_buffer());
  const sharding::State wanted = weights(trained.options, model, Pieces::kHeld);
  Stream& stream = model.rank().compute();
  sharding::CopyState copy;
  if (model.rank().separate_memory()) {
    copy = [&stream](const void* from, void* to, std::int64_t bytes) {
      stream.copy(from, to, bytes);
      stream.synchronize();
    };
  }
  if (model.frozen().any()) {
    const std::string& path = trained.recipe.checkpoint.init_from;
    const BaseModel base(trained.options, path);
    const std::string digest = load_base_model(base, trained.options, model, reading, copy);
    require_same_base(*trained.checkpoint, digest, path);
  }
  if (trained.folder) {
    trained.folder->load(wanted, reading, copy);
  } else {
    load_checkpoint(*trained.checkpoint, wanted, reading, copy);
  }
  for (std::size_t unit = 0; unit < model.units().size(); ++unit) {
    model.publish(static_cast<int>(unit));
  }
}

}  // namespace sherd::engine
