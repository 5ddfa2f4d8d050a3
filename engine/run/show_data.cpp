#include "engine/run/show_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/data/batcher.h"
#include "engine/data/one_sequence.h"
#include "engine/run/epochs.h"
#include "engine/train/data_sources.h"
#include "engine/train/from_recipe.h"
#include "engine/train/stage_epochs.h"

namespace sherd::engine {
namespace {

class Writer {
 public:
  Writer(const data::TokenText& text, bool colour) : text_(text), colour_(colour) {}

  // A token is trained on where it is the target of the one before it.
  void document(const data::OneSequence& sequence, std::size_t first, std::size_t count) {
    for (std::size_t begin = first; begin < first + count;) {
      std::size_t end = begin + 1;
      while (end < first + count &&
             trained(sequence, end, first) == trained(sequence, begin, first)) {
        ++end;
      }
      const std::span<const std::int32_t> ids(sequence.inputs.data() + begin, end - begin);
      const std::string part = text_.text(ids);
      if (!trained(sequence, begin, first)) {
        out += part;
      } else {
        out += colour_ ? "\x1b[32m" + part + "\x1b[0m" : "«" + part + "»";
      }
      begin = end;
    }
    out += '\n';
  }

  std::string out;

 private:
  static bool trained(const data::OneSequence& sequence, std::size_t token, std::size_t first) {
    return token > first && sequence.targets[token - 1] != data::kNoTarget;
  }
  const data::TokenText& text_;
  bool colour_;
};

}  // namespace

std::string shown_data(const ResolvedRecipe& as_written, const ShowData& show) {
  const ResolvedRecipe resolved = with_stage_steps(as_written);
  const Recipe& run = resolved.values;
  const std::vector<Segment> segments = segments_of(resolved);
  const Recipe& recipe = segments[0].recipe.values;
  const data::BatchSources sources = open_sources(recipe);
  const auto dataset = sources.training[0].dataset;
  const data::BatchShape of_run = batch_shape(recipe), shape = data::one_at_a_time(of_run);
  const data::Batcher batcher(sources, shape);
  const auto batches = segments.size() == 1
                           ? std::vector{std::make_shared<const data::Batcher>(sources, of_run)}
                           : open_batches(segments);
  Writer writer(dataset->text(), show.colour);
  writer.out = data_lines(run, {segments, batches}) + "\n";
  if (batcher.num_sources() == 1 && batches.size() == 1)
    writer.out += epochs_line(recipe, batcher) + "\n";
  const bool separate = has_separate_documents(recipe);
  const auto tokens = static_cast<std::size_t>(shape.seq_length);
  for (std::int64_t row = 0; row < show.samples; ++row) {
    data::OneSequence sequence(shape.seq_length);
    batcher.fill(row / shape.num_micro_steps, row % shape.num_micro_steps, 0,
                 sequence.batch(separate));
    const auto targets = std::count_if(sequence.targets.begin(), sequence.targets.end(),
                                       [](std::int32_t id) { return id != data::kNoTarget; });
    const auto documents = sequence.documents(separate);
    std::string lengths;
    std::size_t used = 0;
    for (const auto& document : documents) {
      lengths += fmt::format("{}{}", lengths.empty() ? "" : " + ", document.count);
      used += document.count;
    }
    writer.out += fmt::format(
        "\nsequence {} of step {}{}: {} tokens, {:.1f} % full, {} with a loss\n",
        row % shape.num_micro_steps + 1, row / shape.num_micro_steps + 1,
        batcher.num_sources() == 1
            ? ""
            : fmt::format(", of {}", batcher.source(batcher.place_of(row).source).name),
        lengths, 100.0 * static_cast<double>(used) / static_cast<double>(tokens), targets);
    for (const auto& document : documents) {
      writer.document(sequence, document.first, document.count);
    }
  }
  return std::move(writer.out);
}

}  // namespace sherd::engine
