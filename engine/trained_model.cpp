#include "engine/trained_model.h"

#include <nlohmann/json.hpp>

#include "checkpoint/reader.h"
#include "engine/checkpointing.h"
#include "engine/data/dataset.h"
#include "engine/memory_plan.h"
#include "engine/run_state.h"

namespace sherd::engine {
namespace {

using checkpoint::Checkpoint;

struct TrainedModel {
  Recipe recipe;
  TrainingOptions options;
  std::vector<char32_t> vocabulary;
};

std::string stored_recipe(const Checkpoint& checkpoint) {
  const auto found = checkpoint.manifest().global->find("recipe");
  if (found == checkpoint.manifest().global->end() || !found->is_string()) {
    throw DataError("{}: holds no recipe, so what model this is can't be known.",
                    checkpoint.manifest_path());
  }
  return found->get<std::string>();
}

std::vector<char32_t> stored_vocabulary(const Checkpoint& checkpoint) try {
  std::vector<char32_t> vocabulary;
  for (const auto& character : checkpoint.manifest().global->at("vocabulary")) {
    vocabulary.push_back(static_cast<char32_t>(character.get<std::uint32_t>()));
    if (vocabulary.back() >= 0x110000 ||
        (vocabulary.size() > 1 && vocabulary.back() <= vocabulary[vocabulary.size() - 2])) {
      throw DataError("{}: its vocabulary isn't an ascending list of characters.",
                      checkpoint.manifest_path());
    }
  }
  return vocabulary;
} catch (const nlohmann::json::exception& error) {
  throw DataError("{}: its vocabulary can't be read: {}", checkpoint.manifest_path(), error.what());
}

TrainedModel trained_model(const Checkpoint& checkpoint, const TrainedModelRequest& request) {
  RecipeRequest recipe;
  recipe.path = "the recipe in " + checkpoint.path();
  recipe.text = stored_recipe(checkpoint);
  if (request.ranks) {
    // No step is taken, so the batch of one follows from the number of ranks.
    const Recipe::Training training = resolve_recipe(recipe).values.training;
    recipe.ranks = request.ranks;
    recipe.sets = {
        "parallelism.data_parallel_replicate_degree=1", "training.gradient_accumulation_steps=1",
        fmt::format("training.global_batch_size={}", *request.ranks * training.micro_batch_size)};
  }
  for (const std::string& set : request.sets) {
    recipe.sets.push_back(set);
    // Separate files to validate with take the place of a share of the training text.
    if (set.starts_with("data.validation_path=")) {
      recipe.sets.push_back("data.validation_fraction=0");
    }
  }
  TrainedModel model{resolve_recipe(recipe).values, {}, stored_vocabulary(checkpoint)};
  model.options = training_options(model.recipe);
  model.options.placement.has_gradients = false;
  model.options.model.recompute = Recompute::kFull;  // nothing is kept for a backward
  return model;
}

void load_weights(const Checkpoint& checkpoint, const TrainingOptions& options,
                  ShardedModel& model) {
  const Buffer reading = model.rank().acquire_on_host(checkpoint_reading_buffer());
  const sharding::State wanted = weights(options, model, Pieces::kHeld);
  checkpoint::check_match(checkpoint, wanted.tensors, checkpoint::Match::kListedKinds);
  Stream& stream = model.rank().compute();
  sharding::CopyState copy;
  if (model.rank().separate_memory()) {
    copy = [&stream](const void* from, void* to, std::int64_t bytes) {
      stream.copy(from, to, bytes);
      stream.synchronize();
    };
  }
  stream.synchronize();
  checkpoint::load(checkpoint, wanted, checkpoint::Match::kListedKinds, reading, copy);
  for (std::size_t unit = 0; unit < model.units().size(); ++unit) {
    model.parameters().publish(static_cast<int>(unit));
  }
}

/// Runs `use(rank, model)` on every rank, with the checkpoint's weights in the model.
template <class Use>
void with_weights(const Checkpoint& checkpoint, const TrainedModel& trained,
                  const std::optional<Device>& asked, const Use& use) {
  const Device device = asked ? *asked : choose_device(trained.recipe);
  LaunchOptions launch = launch_options(trained.recipe);
  MemoryRequest request{.world_size = launch.world_size,
                        .num_threads = launch.compute_threads(),
                        .device = device.kind,
                        .deterministic = trained.recipe.run.deterministic,
                        .separate_memory = device.separate_memory};
  const auto of_rank = [&request](int r) {
    MemoryRequest of_rank = request;
    of_rank.rank = r;
    return of_rank;
  };
  device.use_for(
      launch, [&](int r) { return plan_memory_of_use(trained.options, of_rank(r)); },
      [&](int r) { return plan_host_memory_of_use(trained.options, of_rank(r)); });
  install_stop_handlers();
  run_ranks(launch, [&](sharding::Rank& rank) {
    ShardedModel model(trained.options, rank);
    rank.guard([&] {
      load_weights(checkpoint, trained.options, model);
      use(rank, model);
    });
  });
}

}  // namespace

EvaluationResult evaluate_checkpoint(const TrainedModelRequest& request) {
  const Checkpoint checkpoint(checkpoint::posix_disk(), request.checkpoint);
  const TrainedModel trained = trained_model(checkpoint, request);
  data::DataOptions data = data_options(trained.recipe);
  data.only_validate = true;
  data.vocabulary = trained.vocabulary;
  const data::Batcher batcher(data::open_dataset(data), batch_shape(trained.recipe));
  if (batcher.num_validation_windows() == 0) {
    throw DataError("{}: nothing to validate with; give text with --set data.validation_path=...",
                    data.path);
  }
  EvaluationResult result;
  with_weights(checkpoint, trained, request.device, [&](sharding::Rank& rank, ShardedModel& model) {
    Evaluation evaluation(trained.options, model, batcher);
    const EvaluationResult of_rank = evaluation.run(0);
    if (rank.rank == 0) result = of_rank;
  });
  if (result.stop != StopRequest::kNone) throw_stopped(result.stop, "during the evaluation");
  return result;
}

std::string sample_checkpoint(const TrainedModelRequest& request, const std::string& prompt,
                              const SamplingOptions& options) {
  const Checkpoint checkpoint(checkpoint::posix_disk(), request.checkpoint);
  const TrainedModel trained = trained_model(checkpoint, request);
  const std::unique_ptr<const data::TokenText> text = data::make_token_text(
      data_options(trained.recipe).format, trained.options.model.vocab_size, trained.vocabulary);
  std::vector<std::int32_t> ids = text->ids(prompt);
  if (ids.empty()) ids = {0};
  std::vector<std::int32_t> tokens;
  with_weights(checkpoint, trained, request.device, [&](sharding::Rank& rank, ShardedModel& model) {
    const auto buffers = evaluation_buffers(trained.options, rank.world_size);
    const sharding::MirroredBuffer inputs(rank, buffers[0]);
    const auto of_rank = sample(model, ids, options, inputs);
    if (rank.rank == 0) tokens = of_rank;
  });
  return text->text(tokens);
}

}  // namespace sherd::engine
