#include "engine/run/generation.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "engine/data/dataset.h"
#include "engine/generate/sample.h"
#include "engine/generate/text_stream.h"
#include "engine/huggingface/end_tokens.h"
#include "engine/launch/device.h"
#include "engine/report/progress.h"
#include "engine/run/trained_model.h"
#include "engine/run/with_weights.h"
#include "engine/train/from_recipe.h"

namespace sherd::engine {
namespace {

constexpr std::int64_t kTokensAtATime = 256;  // of a prompt

std::vector<std::vector<std::int32_t>> ids_of(const std::vector<std::string>& prompts,
                                              const data::TokenText& text) {
  std::vector<std::vector<std::int32_t>> all;
  for (const std::string& prompt : prompts) {
    all.push_back(text.ids(prompt));
    if (all.back().empty()) all.back() = {0};
  }
  return all;
}

std::int64_t longest(const std::vector<std::vector<std::int32_t>>& prompts) {
  std::size_t most = 0;
  for (const auto& prompt : prompts) most = std::max(most, prompt.size());
  return static_cast<std::int64_t>(most);
}

/// Tells results in the order of their prompts, whichever rank has them first.
class InOrder {
 public:
  explicit InOrder(const GenerationRequest& request) : request_(request) {}

  void tell(std::size_t prompt, GeneratedText text) {
    std::lock_guard lock(mutex_);
    done_.emplace(prompt, std::move(text));
    for (auto next = done_.find(told_); next != done_.end(); next = done_.find(told_)) {
      if (request_.on_end) request_.on_end(told_, next->second);
      done_.erase(next);
      ++told_;
    }
  }

 private:
  const GenerationRequest& request_;
  std::mutex mutex_;
  std::map<std::size_t, GeneratedText> done_;
  std::size_t told_ = 0;
};

class Generation {
 public:
  explicit Generation(const GenerationRequest& request)
      : request_(request),
        trained_(trained_model(request.model)),
        machine_(request.model.machine ? request.model.machine : choose_machine(trained_.recipe)),
        text_(make_text(trained_)),
        prompts_(ids_of(request.prompts, *text_)),
        end_tokens_(request.ignores_end_tokens ? std::vector<std::int32_t>{}
                                               : end_tokens_of(trained_)),
        results_(request) {
    fit_shape();
    place_parameters();
  }

  void run() {
    with_weights(trained_, machine_, [&](sharding::Rank& rank, ShardedModel& model) {
      const auto buffers = evaluation_buffers(trained_.options, rank.world_size());
      const sharding::MirroredBuffer inputs(rank, buffers[0]);
      Decoder decoder(model, inputs);
      const auto world = static_cast<std::size_t>(rank.world_size());
      const auto own = static_cast<std::size_t>(rank.rank);
      for (std::size_t p = 0; p < prompts_.size(); ++p) {
        if (together() || p % world == own) generate(decoder, p, !together() || own == 0);
      }
    });
  }

 private:
  static std::unique_ptr<const data::TokenText> make_text(const TrainedModel& trained) {
    data::DataOptions data = data_options(trained.recipe);
    data.vocabulary = trained.vocabulary;
    return data::make_token_text(data);
  }

  static std::vector<std::int32_t> end_tokens_of(const TrainedModel& trained) {
    auto& disk = checkpoint::posix_disk();
    return huggingface::end_tokens(
        disk, trained.checkpoint ? kept_beside(*trained.checkpoint) : trained.path);
  }

  /// All ranks work on the same prompt, because each unit is gathered from all of them.
  bool together() const { return trained_.options.placement.parameters_sharded(); }

  /// Room for one text: the longest prompt and what follows it.
  void fit_shape() {
    model::ModelShape& shape = trained_.options.model;
    const std::int64_t known = trained_.folder ? trained_.recipe.model.max_seq_length : 0;
    const std::int64_t context = std::max(shape.seq_length, known);
    const std::int64_t positions =
        std::min(context, longest(prompts_) + request_.sampling.num_tokens);
    shape.sequences = 1;
    shape.seq_length = positions;
    if (machine_->traits().kind != DeviceKind::kCpu) return;
    shape.cached_positions = positions;
    shape.seq_length = std::min(positions, kTokensAtATime);
    shape.logits_chunk_elements = 0;  // as few at a time as there are
  }

  /// Whole on every rank if there is room: then nothing is gathered, and ranks needn't wait.
  void place_parameters() {
    if (!together()) return;
    if (trained_.recipe.world_size() > 1) {
      const sharding::Placement sharded = trained_.options.placement;
      trained_.options.placement = sharding::placement_of(0, sharded.grad_sync);
      trained_.options.placement.has_gradients = false;
      if (fits(trained_, *machine_)) return;
      trained_.options.placement = sharded;
    }
    if (trained_.recipe.world_size() > 1 && request_.on_note) {
      request_.on_note(
          fmt::format("{} ranks gather every unit for every token, since no rank has room for all "
                      "parameters: this is slow.",
                      trained_.recipe.world_size()));
    }
  }

  void generate(Decoder& decoder, std::size_t p, bool tells) {
    const TextOf text_of = [this](std::span<const std::int32_t> ids) {
      return request_.for_terminal ? text_->text(ids) : text_->exact_text(ids);
    };
    TextStream stream(text_of, prompts_[p], request_.stops);
    GeneratedText result;
    const bool shows = tells && prompts_.size() == 1 && request_.on_text;
    const auto show = [&](bool is_end) {
      if (!shows) return;
      if (const std::string piece = stream.take(is_end); !piece.empty()) request_.on_text(piece);
    };
    sample(decoder, prompts_[p], request_.sampling, [&](std::int32_t token) {
      ++result.num_tokens;
      if (std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end()) {
        result.end = GeneratedText::End::kEndToken;
        return false;
      }
      if (!stream.add(token)) result.end = GeneratedText::End::kStop;
      show(false);
      return !stream.stopped();
    });
    show(true);
    result.text = stream.text();
    if (tells) results_.tell(p, std::move(result));
  }

  const GenerationRequest& request_;
  TrainedModel trained_;
  std::shared_ptr<const Machine> machine_;
  std::unique_ptr<const data::TokenText> text_;
  std::vector<std::vector<std::int32_t>> prompts_;
  std::vector<std::int32_t> end_tokens_;
  InOrder results_;
};

}  // namespace

std::string_view name_of(GeneratedText::End end) {
  switch (end) {
    case GeneratedText::End::kStop:
      return "stop";
    case GeneratedText::End::kEndToken:
      return "end";
    case GeneratedText::End::kLength:
      break;
  }
  return "length";
}

void generate(const GenerationRequest& request) {
  CHECK(!request.prompts.empty() && request.sampling.num_tokens >= 1, "nothing to generate");
  Generation(request).run();
}

}  // namespace sherd::engine
