#include "engine/train/data_sources.h"

#include <algorithm>
#include <array>

#include "engine/data/shuffle.h"
#include "engine/train/from_recipe.h"

namespace sherd::engine {
namespace {

// In the order of DataFormat.
constexpr std::array kFormats = {data::Format::kBytes, data::Format::kChars, data::Format::kBin,
                                 data::Format::kText, data::Format::kChat};

// Of an item, without its path. Empty texts of the item are the block's. The
// rules have checked them.
template <class Item>
data::DataOptions options_of(const Recipe& recipe, const Item& item) {
  data::DataOptions options = data_options(recipe);
  options.path.clear();
  options.validation_path.clear();
  if (!item.format.empty()) {
    options.format = *std::ranges::find(kFormats, item.format, data::name_of);
    options.separate_documents =
        options.format == data::Format::kChat || recipe.data.documents == DocumentChoice::kSeparate;
  }
  if (!item.field.empty()) options.field = item.field;
  if (!item.documents.empty()) options.separate_documents = item.documents == "separate";
  return options;
}

void add_training(const Recipe& recipe, std::vector<data::DataOptions>& all) {
  const std::vector<DataSource>& sources = recipe.data.sources;
  if (sources.empty()) all.push_back(data_options(recipe));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    all.push_back(options_of(recipe, sources[i]));
    all.back().path = sources[i].path;
    all.back().path_key = fmt::format("data.sources[{}].path", i);
  }
}

// All that is opened, in the order in which it is.
std::vector<data::DataOptions> all_options(const Recipe& recipe, bool only_validate) {
  std::vector<data::DataOptions> all;
  const bool uses_training = !only_validate || recipe.data.validation_fraction > 0.0 ||
                             !recipe.data.validation_path.empty() ||
                             recipe.data.validation_sets.empty();
  if (uses_training) add_training(recipe, all);
  for (data::DataOptions& options : all) options.only_validate = only_validate;
  const std::vector<ValidationSet>& sets = recipe.data.validation_sets;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    all.push_back(options_of(recipe, sets[i]));
    all.back().validation_path = sets[i].path;
    all.back().validation_key = fmt::format("data.validation_sets[{}].path", i);
    all.back().only_validate = true;
  }
  return all;
}

// One more than the largest id of the run's tokenizer; unknown for token files alone.
std::optional<std::int64_t> tokenizer_size(const Recipe& recipe) {
  if (recipe.data.format == DataFormat::kBytes) return 256;
  if (recipe.data.format == DataFormat::kChars) return recipe.model.vocab_size;
  if (recipe.data.tokenizer.empty()) return std::nullopt;
  return data::size_of_tokenizer(recipe.data.tokenizer);
}

void require_apart(const data::BatchSources& sources) {
  for (const data::ValidationSource& set : sources.validation) {
    for (const data::Source& source : sources.training) {
      if (set.dataset == source.dataset) continue;
      const std::string path = set.dataset->file_shared_with(*source.dataset);
      if (path.empty()) continue;
      throw DataError(
          "{}: is in the validation set \"{}\" and is trained on; validate with files that aren't "
          "trained on.",
          path, set.name);
    }
  }
}

std::string name_or(const std::string& name, const std::string& path) {
  return name.empty() ? name_of_path(path) : name;
}

}  // namespace

bool has_separate_documents(const Recipe& recipe) {
  const auto all = all_options(recipe, false);
  return std::ranges::any_of(all, &data::DataOptions::separate_documents);
}

data::BatchSources open_sources(const Recipe& recipe, const OpenSources& how) {
  std::vector<data::DataOptions> all = all_options(recipe, how.only_validate);
  std::vector<char32_t> vocabulary = how.vocabulary;
  // The characters of all texts together.
  if (vocabulary.empty() && recipe.data.format == DataFormat::kChars && all.size() > 1) {
    vocabulary = data::vocabulary_of_all(all);
  }
  data::BatchSources sources;
  const std::size_t num_sets = recipe.data.validation_sets.size();
  const std::size_t num_sources = all.size() - num_sets;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].vocabulary = vocabulary;
    const std::shared_ptr<const data::Dataset> dataset = data::open_dataset(all[i]);
    if (i >= num_sources) {
      const ValidationSet& set = recipe.data.validation_sets[i - num_sources];
      sources.validation.push_back({name_or(set.name, set.path), dataset, set.batches});
      // A model that is only evaluated has no other text.
      if (num_sources == 0 && i == 0) sources.training.push_back({set.name, dataset});
      continue;
    }
    const bool is_listed = !recipe.data.sources.empty();
    const DataSource source = is_listed ? recipe.data.sources[i] : DataSource{};
    const std::string name = is_listed ? name_or(source.name, source.path) : "training";
    sources.training.push_back({name, dataset, source.weight, source.max_epochs});
    sources.validation.push_back({is_listed ? name : "validation", dataset});
  }
  require_apart(sources);
  const std::vector<StageSpan> spans = spans_of(recipe);
  const std::vector<DataStage>& stages = recipe.data.stages;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const bool has_length = stages[i].steps > 0 || stages[i].tokens > 0;
    SHERD_CHECK(stages[i].epochs == 0.0, "data.stages[{}] is still in epochs", i);
    sources.stages.push_back(
        {has_length ? spans[i].end_step - spans[i].first_step : 0, stages[i].weights});
  }
  for (std::size_t i = 0; i < sources.validation.size(); ++i) {
    if (sources.validation[i].name == recipe.training.best_by) {
      sources.main_validation = static_cast<int>(i);
    }
  }
  return sources;
}

std::shared_ptr<const std::vector<data::Task>> open_tasks(const Recipe& recipe,
                                                          std::int64_t seq_length) {
  if (recipe.training.tasks.empty()) return nullptr;
  const data::TaskLimits limits{.vocab_size = recipe.model.vocab_size,
                                .tokenizer_size = tokenizer_size(recipe),
                                .seq_length = seq_length};
  auto tasks = std::make_shared<std::vector<data::Task>>();
  for (const TaskFile& task : recipe.training.tasks) {
    tasks->push_back(data::read_task(name_or(task.name, task.path), task.path, limits));
  }
  return tasks;
}

std::vector<std::shared_ptr<const data::Batcher>> open_batches(
    const std::vector<Segment>& segments) {
  std::vector<std::shared_ptr<const data::Batcher>> batches;
  std::int64_t cut = 0;
  for (const Segment& segment : segments) {
    data::BatchSources sources = open_sources(segment.recipe.values);
    const data::BatchShape shape = batch_shape(segment.recipe.values);
    if (!batches.empty()) {
      // Documents are packed into rows that balance the ranks of a step, so they depend on its size.
      const bool packs_anew =
          std::ranges::any_of(
              sources.training,
              [](const data::Source& source) { return source.dataset->separate_documents(); }) &&
          shape.global_batch_size() != batches.back()->shape().global_batch_size();
      if (segment.cuts_anew || packs_anew) cut = static_cast<std::int64_t>(segment.first_stage);
      sources.begin = batches.back()->end_at(segment.first_step, cut);
    }
    batches.push_back(std::make_shared<const data::Batcher>(std::move(sources), shape));
  }
  return batches;
}

std::vector<data::StageFingerprint> fingerprints_of(
    const Recipe& run, const std::vector<std::shared_ptr<const data::Batcher>>& batches) {
  std::vector<data::StageFingerprint> all;
  for (const auto& segment : batches) {
    const data::BatchShape& shape = segment->shape();
    const bool is_runs = shape.seq_length == run.training.seq_length &&
                         shape.global_batch_size() == run.training.global_batch_size;
    for (data::StageFingerprint stage : segment->fingerprints()) {
      if (!is_runs)
        stage.hash = data::hash_of(stage.hash, shape.seq_length, shape.global_batch_size());
      all.push_back(stage);
    }
  }
  return all;
}

}  // namespace sherd::engine
