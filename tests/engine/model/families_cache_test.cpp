// Models with their keys and values kept, or their latents: bit for bit what one pass gives.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/model/family_case.h"
#include "tests/support/models/weighed_forms.h"

namespace sherd::testing {
namespace {

// Logits of all tokens of the first sequence, in passes of `passes` tokens each; without a cache in one.
std::vector<float> logits_of(model::ModelShape shape, const ValuesByName& weights,
                             std::vector<std::int64_t> passes, bool cached) {
  const auto inputs = tokens(shape, 1000);
  shape.sequences = 1;
  if (cached) shape.cached_positions = shape.seq_length;
  HeapAllocator memory;
  const auto stream = make_cpu_compute_stream({});
  model::Transformer transformer(shape, memory, *stream);
  const Units parameters(shape, &weights);
  const auto head = model::head_parameters(shape, parameters.head(shape));
  if (!cached) passes = {shape.seq_length};
  std::vector<float> all;
  for (std::int64_t first = 0; const std::int64_t count : passes) {
    transformer.resize(1, count);
    const model::Pass pass{.inputs = {inputs.data() + first, DType::kI32, count},
                           .targets = {},
                           .first_position = first};
    transformer.embed(model::embedding_parameters(shape, parameters.first()), pass);
    for (std::int64_t i = 0; i < shape.num_layers; ++i) {
      transformer.block_forward(i, model::block_parameters(shape, i, parameters.block(i)), pass);
    }
    const Tensor logits = transformer.logits(head, 0, count);
    stream->synchronize();
    all.insert(all.end(), logits.as<float>(), logits.as<float>() + logits.numel);
    first += count;
  }
  return all;
}

double rms(const std::vector<float>& values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

void expect_same_with_cache(const model::ModelShape& shape, const ValuesByName& weights) {
  const std::vector<float> expected = logits_of(shape, weights, {}, false);
  const std::int64_t length = shape.seq_length;
  EXPECT_EQ(logits_of(shape, weights, std::vector<std::int64_t>(length, 1), true), expected);
  EXPECT_EQ(logits_of(shape, weights, {3, 1, length - 5, 1}, true), expected);
  if (!shape.latent.active() || shape.latent.absorbed) return;
  model::ModelShape absorbed = shape;
  absorbed.latent.absorbed = true;
  expect_same_with_cache(absorbed, weights);
  const std::vector<float> attended = logits_of(absorbed, weights, {}, false);
  EXPECT_NE(attended, expected) << "the same sums in another order";
  EXPECT_LT(largest_difference(attended, expected), 1e-4 * rms(expected));
}

class FamiliesWithCache : public ::testing::TestWithParam<std::string> {};

TEST_P(FamiliesWithCache, HaveTheSameLogitsWhenKeysAndValuesAreKept) {
  const Family family(GetParam());
  expect_same_with_cache(family.shape(), family.weights());
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesWithCache, ::testing::ValuesIn(family_names()),
                         [](const auto& info) { return info.param; });

// Latent attention, also with an adapter of what makes keys and values, sinks, experts, sparsemixer.
class FormsWithCache : public ::testing::TestWithParam<ModelForm> {};
std::vector<ModelForm> forms_on_cpus_alone() {
  std::vector<ModelForm> forms = expert_forms_on_cpus();
  for (const auto& more : {latent_forms(), sink_forms()}) {
    forms.insert(forms.end(), more.begin(), more.end());
  }
  model::ModelShape adapted = latent_forms()[0].shape;
  adapted.adapter = {.rank = 2, .scale = 1.5, .targets = {"attention.kv_up"}};
  forms.push_back({"latents_with_an_adapter", adapted});
  // As Phi-3.5-MoE.
  model::ModelShape mixes = shape_named(expert_forms(), "experts");
  mixes.norm = kernels::NormKind::kLayerNorm;
  mixes.biases = {.norm = true, .qkv = true, .output = true, .mlp = false, .head = true};
  mixes.tied = false;
  mixes.moe = {.experts = 5,
               .per_token = 2,
               .ffn_width = 13,
               .score = kernels::RouterScore::kSparsemixer,
               .jitter = 0.4};
  forms.push_back({"sparsemixer_and_a_heads_bias", mixes});
  return forms;
}
INSTANTIATE_TEST_SUITE_P(Forms, FormsWithCache, ::testing::ValuesIn(forms_on_cpus_alone()),
                         [](const auto& info) { return info.param.name; });

TEST_P(FormsWithCache, HaveTheSameLogitsWhenKeysAndValuesAreKept) {
  model::ModelShape shape = GetParam().shape;
  shape.dropout = 0.0;
  ValuesByName weights;
  std::uint32_t kind = 0;
  for (const UnitSpec& unit : model::parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      std::vector<float>& values = weights[parameter.name];
      ++kind;
      for (std::int64_t i = 0; i < parameter.numel(); ++i) {
        const auto draw = reference_hash(static_cast<std::uint32_t>(i), kind) % 2001;
        values.push_back((static_cast<float>(draw) - 1000.0f) / 2000.0f);
      }
    }
  }
  expect_same_with_cache(shape, weights);
}

}  // namespace
}  // namespace sherd::testing
