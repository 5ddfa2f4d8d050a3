#include "engine/run/starter_recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "engine/data/dataset.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/values.h"

namespace sherd::engine {
namespace {

struct Texts {
  std::int64_t vocab_size = 256;
  std::int64_t seq_length = 0;
  std::int64_t num_tokens = 0;  ///< to train on
  std::string summary;
};

// The longest sequence of which both splits have a window.
Texts look_at(const StarterRequest& request) {
  Texts texts;
  data::DataOptions options{.path = request.data_path};
  if (request.format == DataFormat::kChars) {
    options.format = data::Format::kChars;
    options.vocab_size = texts.vocab_size = data::num_distinct_characters(request.data_path);
  }
  for (std::int64_t length = 256; true; length /= 2) {
    options.seq_length = length;
    try {
      const auto dataset = data::open_dataset(options);
      texts.seq_length = length;
      texts.num_tokens = dataset->num_tokens(data::Split::kTrain);
      texts.summary = dataset->summary();
      return texts;
    } catch (const DataError&) {
      constexpr std::int64_t kShortest = 16;
      if (length <= kShortest) throw;
    }
  }
}

// The path as a recipe writes it, in quotes where it needs them, and on one line.
std::string yaml_path(const std::string& path) {
  Recipe recipe;
  recipe.data.path = path;
  return format_value(recipe_fields()[static_cast<std::size_t>(field_index("data.path"))], recipe);
}

constexpr const char* kRecipe = R"(# A small model for the texts of {path}
# ({summary}).
# Train it:       sherd train THIS_FILE            (--ranks 2 shards the state over two ranks)
# Will it fit?    sherd plan THIS_FILE
# Every key:      sherd recipe --help-fields       and with its value here: sherd recipe THIS_FILE
# Any key can be changed for one run: --set training.max_steps=1000

model:
  num_layers: 4            # about 3 million parameters: enough for a megabyte of text
  hidden_size: 256         # wider and deeper models learn more, and take longer
  num_attention_heads: 4   # divides hidden_size
  vocab_size: {vocab}          # {what}

data:
  path: {path}
  format: {format}           # bytes: any text; chars: UTF-8, a token is a character
  validation_fraction: 0.1   # the end of every file is held out

training:
  seq_length: {seq}          # tokens that the model sees at once
  global_batch_size: 8     # sequences per step; 1, 2, 4 and 8 ranks divide it
  gradient_accumulation_steps: 1
  max_steps: {steps}          # {times}
  eval_interval: {interval}       # steps between evaluations on the held-out text
  eval_batches: 20
  sample_tokens: 200       # text written by the model at the end

zero_optimization:
  stage: 3                 # what ranks shard: 0 nothing, 1 optimizer, 2 + gradients, 3 + parameters

optimizer:
  type: adamw
  lr: 1e-3                 # lower it if the loss jumps

lr_scheduler:
  type: cosine
  warmup_steps: {warmup}

checkpoint:
  interval: {interval}            # the same command continues from the newest one
)";

}  // namespace

std::string starter_recipe(const StarterRequest& request) {
  const Texts texts = look_at(request);
  const std::int64_t tokens_per_step = 8 * texts.seq_length;
  // Once over the text, within reason for a first try.
  const std::int64_t steps =
      std::clamp<std::int64_t>(texts.num_tokens / tokens_per_step / 100 * 100, 300, 2000);
  const double times = static_cast<double>(steps * tokens_per_step) /
                       static_cast<double>(std::max<std::int64_t>(texts.num_tokens, 1));
  const bool chars = request.format == DataFormat::kChars;
  return fmt::format(
      fmt::runtime(kRecipe), fmt::arg("path", yaml_path(request.data_path)),
      fmt::arg("summary", texts.summary), fmt::arg("vocab", texts.vocab_size),
      fmt::arg("what", chars ? "the distinct characters of the text" : "a token is a byte"),
      fmt::arg("format", chars ? "chars" : "bytes"), fmt::arg("seq", texts.seq_length),
      fmt::arg("steps", steps),
      fmt::arg("times", times < 0.75  ? fmt::format("about {:.2g} % of the text", 100.0 * times)
                        : times < 1.5 ? "the text about once"
                                      : fmt::format("the text about {:.0f} times", times)),
      fmt::arg("interval", steps / 4), fmt::arg("warmup", steps / 20));
}

std::string packaged_quickstart(const std::string& folder) {
  const std::string recipe = folder + "/recipe.yaml", text = folder + "/text.txt";
  std::ifstream file(recipe, std::ios::binary);
  std::string yaml((std::istreambuf_iterator<char>(file)), {});
  const std::string relative = "path: text.txt";
  const std::size_t at = yaml.find(relative);
  if (at == std::string::npos || !std::filesystem::is_regular_file(text)) {
    throw DataError("{}: the quickstart's recipe and text aren't whole. Install the package again.",
                    folder);
  }
  return yaml.replace(at, relative.size(), "path: " + yaml_path(text));
}

}  // namespace sherd::engine
