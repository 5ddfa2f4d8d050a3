#include "engine/inference/text_model.h"

#include <algorithm>

#include "engine/data/dataset.h"
#include "engine/inference/end_of_text.h"
#include "engine/inference/with_weights.h"
#include "engine/launch/device.h"
#include "engine/train/evaluation.h"
#include "engine/train/from_recipe.h"

namespace sherd::engine {
namespace {

constexpr std::int64_t kTokensAtATime = 256;  // of a prompt

}  // namespace

TextModel::TextModel(const TrainedModelRequest& request, Text when)
    : trained_(trained_model(request)),
      machine_(machine_of(request, trained_)),
      end_tokens_(end_of_text(trained_)) {
  if (machine_->processes() && !ranks_work_together()) {
    throw UsageError(
        "in several processes, ranks share one model: add --set zero_optimization.stage=3, or use "
        "one process.");
  }
  if (when == Text::kNow) text();
}

const data::TokenText& TextModel::text() const {
  const std::lock_guard lock(opening_);
  if (!text_) {
    data::DataOptions data = data_options(trained_.recipe);
    data.vocabulary = trained_.vocabulary;
    text_ = data::make_token_text(data);
  }
  return *text_;
}

std::vector<std::int32_t> TextModel::prompt_ids(const std::string& prompt) const {
  std::vector<std::int32_t> ids = text().before_document();
  const std::vector<std::int32_t> of_prompt = text().ids(prompt);
  const auto [rest, begun] = std::ranges::mismatch(ids, of_prompt);
  if (rest == ids.end()) ids.clear();
  ids.insert(ids.end(), of_prompt.begin(), of_prompt.end());
  if (ids.empty()) ids = {first_token()};
  return ids;
}

std::int32_t TextModel::first_token() const {
  const std::vector<std::int32_t> before = text().before_document();
  if (!before.empty()) return before[0];
  return end_tokens_.empty() ? 0 : end_tokens_[0];
}

bool TextModel::is_end(std::int32_t token) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

std::int64_t TextModel::longest_context() const {
  return std::max(trained_.recipe.training.seq_length, trained_.recipe.model.max_seq_length);
}

std::int64_t TextModel::usual_context() const {
  return trained_.folder ? longest_context() : trained_.recipe.training.seq_length;
}

std::int64_t TextModel::context_of(std::int64_t asked) const {
  if (asked > longest_context()) {
    throw UsageError("--context {}: the model reads {} tokens.", asked, longest_context());
  }
  return asked > 0 ? asked : usual_context();
}

void TextModel::run(std::int64_t positions, const Use& use,
                    const std::function<void(const std::string&)>& on_note) {
  fit_shape(std::min(positions, longest_context()));
  place_parameters();
  const int world_size = trained_.recipe.world_size();
  if (ranks_work_together() && world_size > 1 && on_note) {
    on_note(fmt::format("{}{} ranks gather each unit for each token, which is slow.",
                        machine_->processes() ? "" : "no rank has room for all parameters, so ",
                        world_size));
  }
  with_weights(trained_, machine_, [&](sharding::Rank& rank, ShardedModel& model) {
    const auto buffers = evaluation_buffers(trained_.options, rank.world_size());
    const sharding::MirroredBuffer inputs(rank, buffers[0]);
    model.interleave_weights();
    Decoder decoder(model, inputs);
    decoder.limit_context(std::min(positions, longest_context()));
    use(rank, decoder);
  });
}

int TextModel::num_ranks_here() const {
  return machine_->ranks_here(static_cast<int>(trained_.recipe.world_size())).count;
}

void TextModel::fit_shape(std::int64_t positions) {
  model::ModelShape& shape = trained_.options.model;
  const bool on_cpu = machine_->traits().kind == DeviceKind::kCpu;
  if (!on_cpu) {  // room for the lengths that are passed there
    positions = std::min(
        (positions + Decoder::kLengthStep - 1) / Decoder::kLengthStep * Decoder::kLengthStep,
        longest_context());
  }
  shape.sequences = 1;
  shape.cached_positions = positions;
  shape.latent.absorbed = on_cpu && shape.latent.active();  // GPUs cache whole heads
  shape.seq_length = std::min(positions, kTokensAtATime);
  shape.logits_chunk_elements = 0;  // as few at a time as there are
}

// Whole on every rank if there is room. Processes can't divide texts among themselves.
void TextModel::place_parameters() {
  if (!ranks_work_together() || machine_->processes()) return;
  const sharding::AxisSet sharded = trained_.options.placement.parameters;
  trained_.options.placement.parameters = {};
  if (!fits(trained_, *machine_)) trained_.options.placement.parameters = sharded;
}

}  // namespace sherd::engine
