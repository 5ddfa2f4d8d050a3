// Models of published families against tests/reference/families.json, which transformers computed:
// logits, loss, and the gradient of every tensor. A family is the recipe keys that the file gives.

#include <gtest/gtest.h>

#include "tests/engine/model/family_case.h"

namespace sherd::testing {
namespace {

FamilyResult compute(const Family& family) {
  const model::ModelShape& shape = family.shape();
  const auto inputs = tokens(shape, 1000), targets = tokens(shape, 2000);
  model::Pass pass;
  pass.inputs = {inputs.data(), DType::kI32, std::ssize(inputs)};
  pass.targets = {targets.data(), DType::kI32, std::ssize(targets)};
  pass.training = true;
  pass.gradient_scale = 1.0f / static_cast<float>(inputs.size());
  HeapAllocator memory;
  const auto stream = make_cpu_compute_stream({});
  model::Transformer transformer(shape, memory, *stream);
  const Units parameters(shape, &family.weights()), gradients(shape, nullptr);
  FamilyResult computed;

  transformer.embed(model::embedding_parameters(shape, parameters.first()), pass);
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    transformer.block_forward(i, model::block_parameters(shape, i, parameters.block(i)), pass);
  }
  const auto head = model::head_parameters(shape, parameters.head(shape));
  for (std::int64_t t = 0; t < shape.tokens(); ++t) {
    const Tensor row = transformer.logits(head, t, 1);
    stream->synchronize();
    const auto* logits = row.as<float>();
    computed.logits.insert(computed.logits.end(), logits, logits + shape.vocab_size);
  }
  transformer.head_train(head, model::head_parameters(shape, gradients.head(shape)), pass);
  stream->synchronize();
  const auto* losses = transformer.losses().as<float>();
  for (std::int64_t t = 0; t < shape.tokens(); ++t) {
    computed.loss += double{losses[t]} / static_cast<double>(shape.tokens());
  }
  for (std::int64_t i = shape.num_layers - 1; i >= 0; --i) {
    transformer.block_backward(i, model::block_parameters(shape, i, parameters.block(i)),
                               model::block_parameters(shape, i, gradients.block(i)), pass);
  }
  transformer.embed_backward(model::embedding_parameters(shape, gradients.first()), pass,
                             shape.tied);
  stream->synchronize();
  computed.gradients = family.taken_apart(gradients.values());
  return computed;
}

Distance distance_of(const Family& family) {
  return distance(family, compute(family));
}

class Families : public ::testing::TestWithParam<std::string> {};

TEST_P(Families, HaveTheParametersThatTheFileNames) {
  const Family family(GetParam());
  std::size_t number = 0;
  for (const UnitSpec& unit : model::parameter_table(family.shape())) {
    for (const ParameterSpec& parameter : unit.parameters) {
      ++number;
      ASSERT_TRUE(family.weights().contains(parameter.name)) << parameter.name;
      EXPECT_EQ(std::ssize(family.weights().at(parameter.name)), parameter.numel())
          << parameter.name;
    }
  }
  EXPECT_EQ(number, family.weights().size());
}

TEST_P(Families, GiveTransformersLogitsLossAndGradientsOfEveryTensor) {
  const Distance off = distance_of(Family(GetParam()));
  EXPECT_LE(off.worst, 1.0) << off.where;
}

INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::ValuesIn(family_names()),
                         [](const auto& info) { return info.param; });

// What a mistake costs, in units of what is allowed.
void expect_seen(const std::string& name, const Mistake& mistake) {
  const Distance off = distance_of(Family(name, mistake));
  EXPECT_GT(off.worst, 20.0) << name << ", " << off.where;
}

TEST(FamiliesMistakes, AForgottenPermutationOfHeadsIsSeen) {
  for (const char* name : {"gpt_neox", "stablelm", "phi4_mini", "cohere2", "glm4", "nemotron"}) {
    expect_seen(name, {.rows_of_heads_stay = true});
  }
}

TEST(FamiliesMistakes, WeightsOfHeadsInAnotherOrderAreSeen) {
  for (const char* name : {"stablelm_12b", "command_r_plus"}) {
    expect_seen(name, {.heads_change_places = true});
    expect_seen(name, {.rows_of_heads_stay = true});
  }
}

TEST(FamiliesMistakes, AWindowThatIsOneOffIsSeen) {
  for (const char* name : {"mistral", "gemma2", "gemma3", "olmo3", "cohere2", "phi3"}) {
    for (const int by : {-1, 1}) {
      expect_seen(name, {.of_shape = [by](model::ModelShape& shape) {
                    for (model::LayerKind& kind : shape.layer_kinds) {
                      if (kind.window > 0) kind.window += by;
                    }
                  }});
    }
  }
}

TEST(FamiliesMistakes, AMissingOffsetScaleCapOrTableIsSeen) {
  using Shape = model::ModelShape;
  expect_seen("gemma", {.of_shape = [](Shape& shape) { shape.norm_offset = 0.0; }});
  expect_seen("gemma", {.of_shape = [](Shape& shape) { shape.embedding_scale = 1.0; }});
  expect_seen("gemma2", {.of_shape = [](Shape& shape) { shape.attention_softcap = 0.0; }});
  expect_seen("gemma2", {.of_shape = [](Shape& shape) { shape.logits_softcap = 0.0; }});
  expect_seen("gemma2", {.of_shape = [](Shape& shape) { shape.attention_scale = 0.0; }});
  expect_seen("granite", {.of_shape = [](Shape& shape) { shape.residual_scale = 1.0; }});
  expect_seen("granite", {.of_shape = [](Shape& shape) { shape.logits_scale = 1.0; }});
  expect_seen("gpt_neox", {.of_shape = [](Shape& shape) {
                shape.activation = kernels::ActivationKind::kGelu;
              }});
  expect_seen("gpt_neox",
              {.of_shape = [](Shape& shape) { shape.block_form = model::BlockForm::kSequential; }});
  for (const char* name : {"llama3", "llama_yarn", "phi4_mini", "olmo3", "gemma3"}) {
    expect_seen(name, {.of_shape = [](Shape& shape) {
                  for (auto& rotary : shape.rotary) rotary.scaling = kernels::RotaryScaling::kNone;
                }});
  }
  expect_seen("gemma3", {.of_shape = [](Shape& shape) {
                for (model::LayerKind& kind : shape.layer_kinds) kind.rotary = 0;
              }});
  expect_seen("smollm3", {.of_shape = [](Shape& shape) {
                for (model::LayerKind& kind : shape.layer_kinds) kind.rotary = 0;
              }});
}

}  // namespace
}  // namespace sherd::testing
