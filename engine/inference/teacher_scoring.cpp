#include "engine/inference/teacher_scoring.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <numeric>
#include <span>

#include "core/error.h"
#include "engine/data/one_sequence.h"
#include "engine/distillation/teacher_file.h"
#include "engine/inference/same_vocabulary.h"
#include "engine/inference/text_model.h"
#include "engine/launch/stop_signals.h"
#include "engine/train/data_sources.h"
#include "engine/train/from_recipe.h"
#include "engine/train/stage_epochs.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kOption = "--save-top";

struct Samples {
  ResolvedRecipe recipe;
  std::shared_ptr<const data::Batcher> batches{};  ///< one at a time
  std::int64_t count = 0;

  const Recipe& values() const { return recipe.values; }
};

Samples samples_of(const ResolvedRecipe& written) {
  Samples samples{with_stage_steps(written)};
  const Recipe& recipe = samples.values();
  samples.batches = std::make_shared<const data::Batcher>(open_sources(recipe),
                                                          data::one_at_a_time(batch_shape(recipe)));
  samples.recipe = with_epoch_steps(samples.recipe, samples.batches->num_steps());
  samples.count = samples.batches->num_samples(recipe.training.max_steps);
  return samples;
}

// The largest logits' ids and log-probabilities.
class Likeliest {
 public:
  Likeliest(std::int64_t top, std::int64_t vocab_size)
      : top_(top), order_(static_cast<std::size_t>(vocab_size)) {}

  void write(std::span<const float> logits, std::int32_t* ids, float* log_probabilities) {
    const auto larger = [&](std::int32_t a, std::int32_t b) {
      const float of_a = logits[static_cast<std::size_t>(a)];
      const float of_b = logits[static_cast<std::size_t>(b)];
      return of_a != of_b ? of_a > of_b : a < b;
    };
    std::iota(order_.begin(), order_.end(), 0);
    std::partial_sort(order_.begin(), order_.begin() + top_, order_.end(), larger);
    const double most = double{*std::ranges::max_element(logits)};
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(double{logit} - most);
    const double of_all = most + std::log(sum);
    for (std::int64_t k = 0; k < top_; ++k) {
      ids[k] = order_[static_cast<std::size_t>(k)];
      log_probabilities[k] =
          static_cast<float>(double{logits[static_cast<std::size_t>(ids[k])]} - of_all);
    }
  }

 private:
  std::int64_t top_;
  std::vector<std::int32_t> order_;
};

// What one rank reads.
class Reader {
 public:
  Reader(const Samples& samples, const TeacherShape& shape, Decoder& decoder)
      : samples_(samples),
        shape_(shape),
        decoder_(decoder),
        likeliest_(shape.top, std::min(decoder.vocab_size(), samples.values().model.vocab_size)),
        sequence_(shape.seq_length),
        ids(static_cast<std::size_t>(shape.of_row())),
        log_probabilities(ids.size()) {}

  void read(std::int64_t sample) {
    const bool separate = has_separate_documents(samples_.values());
    const std::int64_t of_step = samples_.batches->shape().num_micro_steps;
    samples_.batches->fill(sample / of_step, sample % of_step, 0, sequence_.batch(separate));
    std::ranges::fill(ids, 0);
    std::ranges::fill(log_probabilities, 0.0f);
    for (const auto& document : sequence_.documents(separate)) read(document);
  }

 private:
  // From its first to its last token with a target.
  void read(const data::OneSequence::Document& document) {
    const auto targets = std::span(sequence_.targets).subspan(document.first, document.count);
    const auto has_target = [](std::int32_t target) { return target != data::kNoTarget; };
    const auto first = std::ranges::find_if(targets, has_target) - targets.begin();
    auto end = std::ssize(targets);
    while (end > first && !has_target(targets[static_cast<std::size_t>(end) - 1])) --end;
    if (first == end) return;
    const auto tokens = std::span<const std::int32_t>(sequence_.inputs)
                            .subspan(document.first, static_cast<std::size_t>(end));
    decoder_.logits(tokens, first, [&](std::int64_t position, std::span<const float> logits) {
      if (!has_target(targets[static_cast<std::size_t>(position)])) return;
      const std::size_t at = (document.first + static_cast<std::size_t>(position)) *
                             static_cast<std::size_t>(shape_.top);
      likeliest_.write(logits, ids.data() + at, log_probabilities.data() + at);
    });
  }

  const Samples& samples_;
  const TeacherShape& shape_;
  Decoder& decoder_;
  Likeliest likeliest_;
  data::OneSequence sequence_;

 public:
  std::vector<std::int32_t> ids;
  std::vector<float> log_probabilities;
};

void check(const TextModel& teacher, const Samples& samples, const TeacherRequest& request,
           const TeacherShape& shape) {
  const Recipe& student = samples.values();
  const std::vector<char32_t> characters = samples.batches->dataset().text().characters();
  require_same_vocabulary(teacher.vocabulary(),
                          {"the student, " + student.run.name, student, characters},
                          "teacher and student need one vocabulary");
  if (shape.seq_length > teacher.longest_context()) {
    throw UsageError("{}: reads {} tokens at most, and the student's training.seq_length is {}.",
                     request.teacher.checkpoint, teacher.longest_context(), shape.seq_length);
  }
  const std::int64_t most = std::min(kernels::kMostTeacherTokens, student.model.vocab_size);
  if (shape.top > most) {
    throw UsageError("{} is {}, and at most {} tokens can be saved.", kOption, shape.top, most);
  }
  if (segments_of(samples.recipe).size() > 1) {
    throw UsageError(
        "{} needs samples of one length and one batch size. Leave seq_length, global_batch_size "
        "and "
        "micro_batch_size out of the student's data.stages.",
        kOption);
  }
}

}  // namespace

std::int64_t most_teacher_tokens() {
  return kernels::kMostTeacherTokens;
}

SavedTeacher save_teacher(const TeacherRequest& request) {
  TextModel model(request.teacher, TextModel::Text::kWhenNeeded);
  const Samples samples = samples_of(request.student);
  const DistillationKeys& keys = samples.values().distillation;
  const TeacherShape shape{.rows = samples.count,
                           .seq_length = samples.values().training.seq_length,
                           .top = request.top > 0 ? request.top : keys.top_k,
                           .data = hash_of_samples(*samples.batches)};
  const std::string path = request.path.empty() ? keys.teacher : request.path;
  check(model, samples, request, shape);
  TeacherWriter writer(checkpoint::posix_disk(), path, shape);
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;
  std::int64_t done = 0;
  model.run(
      shape.seq_length,
      [&](const sharding::Rank& rank, Decoder& decoder) {
        Reader reader(samples, shape, decoder);
        const bool together = model.ranks_work_together();
        std::int64_t own = 0;
        for (std::int64_t sample = 0; (sample = together ? own++ : next++) < shape.rows;) {
          end_if_asked("before all samples were read; no file was written");
          reader.read(sample);
          if (together && rank.rank != 0) continue;
          writer.write(sample, reader.ids, reader.log_probabilities);
          const std::lock_guard lock(mutex);
          if (request.on_progress) request.on_progress(++done, shape.rows);
        }
      },
      request.on_note);
  writer.finish();
  return {path, shape.rows, shape.seq_length, shape.top};
}

}  // namespace sherd::engine
