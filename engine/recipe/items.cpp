#include "engine/recipe/items.h"

namespace sherd::engine {
namespace {

constexpr Fallback kRequired{Fallback::Kind::kRequired};
constexpr Fallback value(std::string_view yaml) {
  return {Fallback::Kind::kValue, yaml};
}
constexpr Fallback derived(std::string_view rule) {
  return {Fallback::Kind::kDerived, rule};
}
constexpr double kMillion = 1'000'000;
constexpr Range kFloatFraction{.min = 0, .max = 1, .below_max = true, .as_float = true};

template <class T>
struct Plain {
  using Type = T;
};
template <class T>
struct Plain<std::optional<T>> {
  using Type = T;
};

template <class Item, class T>
ItemKey<Item> key(T Item::*member, Field row) {
  row.slot = Member<typename Plain<T>::Type>(nullptr);
  return {std::move(row), member};
}

// clang-format off
const std::vector<ItemKey<DataSource>> kSources = {
    key(&DataSource::path, {.key = "path", .fallback = kRequired, .help = "As data.path."}),
    key(&DataSource::name, {.key = "name", .fallback = derived("the path's last part, without its ending"), .help = "Names the source in output and metrics."}),
    key(&DataSource::weight, {.key = "weight", .fallback = value("1"), .range = {.min = 0, .max = kMillion}, .help = "Share of the sequences, relative to the sum of all weights. 0: not used, as in a stage that comes before this source."}),
    key(&DataSource::max_epochs, {.key = "max_epochs", .fallback = value("0"), .range = {.min = 0, .max = kMillion}, .help = "The run is refused if it would repeat the source more often than this. 0: no limit."}),
    key(&DataSource::format, {.key = "format", .fallback = derived("data.format"), .help = "As data.format; text, bin and chat can be mixed."}),
    key(&DataSource::field, {.key = "field", .fallback = derived("data.field"), .help = "As data.field."}),
    key(&DataSource::documents, {.key = "documents", .fallback = derived("data.documents, or separate with format chat"), .help = "As data.documents."}),
};
const std::vector<ItemKey<DataStage>> kStages = {
    key(&DataStage::steps, {.key = "steps", .fallback = value("0"), .range = {.min = 0, .max = 1e12}, .help = "Steps of the stage."}),
    key(&DataStage::tokens, {.key = "tokens", .fallback = value("0"), .range = {.min = 0, .max = 1e18}, .help = "Tokens of the stage instead of steps, rounded up to whole steps. The last stage needs no length: it lasts to the end of the run."}),
    key(&DataStage::epochs, {.key = "epochs", .fallback = value("0"), .range = {.min = 0, .max = kMillion}, .help = "Epochs of a source instead of steps. The stage ends with the first step that completes them."}),
    key(&DataStage::epochs_of, {.key = "epochs_of", .fallback = derived("the only source"), .help = "Name of the source that epochs counts."}),
    key(&DataStage::weights, {.key = "weights", .fallback = derived("those of data.sources"), .range = {.min = 0, .max = kMillion}, .help = "A weight for each source, in their order."}),
    key(&DataStage::seq_length, {.key = "seq_length", .fallback = derived("training.seq_length"), .range = {.min = 0, .max = 1 << 24}, .help = "Tokens of a sequence in this stage. With another length, the texts are cut again."}),
    key(&DataStage::global_batch_size, {.key = "global_batch_size", .fallback = derived("training.global_batch_size"), .range = {.min = 0, .max = 1e9}, .help = "Sequences per step in this stage."}),
    key(&DataStage::micro_batch_size, {.key = "micro_batch_size", .fallback = derived("training.micro_batch_size"), .range = {.min = 0, .max = kMillion}, .help = "Sequences per rank in one pass in this stage; gradient_accumulation_steps follows."}),
};
const std::vector<ItemKey<ValidationSet>> kValidationSets = {
    key(&ValidationSet::path, {.key = "path", .fallback = kRequired, .help = "As data.path."}),
    key(&ValidationSet::name, {.key = "name", .fallback = derived("the path's last part, without its ending"), .help = "Names the set in output and metrics."}),
    key(&ValidationSet::batches, {.key = "batches", .fallback = derived("training.eval_batches"), .range = {.min = 0, .max = 1e9}, .help = "Batches of global_batch_size sequences per evaluation. 0: the whole set."}),
    key(&ValidationSet::format, {.key = "format", .fallback = derived("data.format"), .help = "As data.format; text, bin and chat can be mixed."}),
    key(&ValidationSet::field, {.key = "field", .fallback = derived("data.field"), .help = "As data.field."}),
    key(&ValidationSet::documents, {.key = "documents", .fallback = derived("data.documents, or separate with format chat"), .help = "As data.documents."}),
};
const std::vector<ItemKey<TaskFile>> kTasks = {
    key(&TaskFile::path, {.key = "path", .fallback = kRequired, .help = "A file of questions as token ids (docs/tasks.md); plain, .gz or .zst."}),
    key(&TaskFile::name, {.key = "name", .fallback = derived("the path's last part, without its ending"), .help = "Names the task in output and metrics."}),
};
const std::vector<ItemKey<ParameterGroup>> kGroups = {
    key(&ParameterGroup::parameters, {.key = "parameters", .fallback = kRequired, .help = "Glob patterns of parameter names, as `sherd plan --parameters` prints them; each must match a parameter that an adapter doesn't freeze."}),
    key(&ParameterGroup::lr_factor, {.key = "lr_factor", .fallback = value("1"), .range = {.min = 0, .max = kMillion, .as_float = true}, .help = "Multiplies the learning rate."}),
    key(&ParameterGroup::weight_decay, {.key = "weight_decay", .fallback = derived("optimizer.weight_decay"), .range = {.min = 0, .as_float = true}, .help = "Weight decay, for norms and biases too if they are in the group."}),
    key(&ParameterGroup::betas, {.key = "betas", .fallback = derived("optimizer.betas"), .range = kFloatFraction, .help = "As optimizer.betas."}),
    key(&ParameterGroup::eps, {.key = "eps", .fallback = derived("optimizer.eps"), .range = {.min = 0, .above_min = true, .as_float = true}, .help = "As optimizer.eps."}),
    key(&ParameterGroup::optimizer, {.key = "optimizer", .fallback = derived("optimizer.type"), .help = "adamw: muon and dion leave these matrices to AdamW."}),
    key(&ParameterGroup::frozen, {.key = "frozen", .fallback = value("false"), .help = "The parameters aren't trained: they have no gradients, no optimizer state and no FP32 master."}),
};
// clang-format on

template <class Item>
std::vector<Field> rows_of() {
  std::vector<Field> rows;
  for (const ItemKey<Item>& key : item_keys<Item>()) rows.push_back(key.row);
  return rows;
}

}  // namespace

template <>
const std::vector<ItemKey<DataSource>>& item_keys() {
  return kSources;
}
template <>
const std::vector<ItemKey<DataStage>>& item_keys() {
  return kStages;
}
template <>
const std::vector<ItemKey<ValidationSet>>& item_keys() {
  return kValidationSets;
}
template <>
const std::vector<ItemKey<TaskFile>>& item_keys() {
  return kTasks;
}
template <>
const std::vector<ItemKey<ParameterGroup>>& item_keys() {
  return kGroups;
}

std::vector<Field> item_rows(const Field& field) {
  if (std::holds_alternative<Member<std::vector<DataSource>>>(field.slot)) {
    return rows_of<DataSource>();
  }
  if (std::holds_alternative<Member<std::vector<DataStage>>>(field.slot)) {
    return rows_of<DataStage>();
  }
  if (std::holds_alternative<Member<std::vector<ValidationSet>>>(field.slot)) {
    return rows_of<ValidationSet>();
  }
  if (std::holds_alternative<Member<std::vector<TaskFile>>>(field.slot)) {
    return rows_of<TaskFile>();
  }
  if (std::holds_alternative<Member<std::vector<ParameterGroup>>>(field.slot)) {
    return rows_of<ParameterGroup>();
  }
  return {};
}

}  // namespace sherd::engine
