// Models cut over tensor ranks against values from outside: tests/reference/families.json, which
// transformers computed, and the models that PyTorch computed in double precision. The tolerances are those
// of the whole models (families_test.cpp, reference_test.cpp).

#include <numeric>

#include "tests/engine/model/cut_case.h"
#include "tests/engine/model/family_case.h"
#include "tests/engine/model/reference_case.h"

namespace sherd::testing {
namespace {

MicroBatch batch_of(std::vector<std::int32_t> inputs, std::vector<std::int32_t> targets) {
  MicroBatch batch{std::move(inputs), std::move(targets), {}};
  batch.pass.training = true;
  batch.pass.gradient_scale = 1.0f / static_cast<float>(batch.inputs.size());
  return batch;
}

double mean(const std::vector<float>& losses) {
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

class TensorParallelFamilies : public ::testing::TestWithParam<std::string> {};

TEST_P(TensorParallelFamilies, GiveTransformersLossAndGradientsOfEveryTensorOnTwoAndFourRanks) {
  const Family family(GetParam());
  const MicroBatch batch = batch_of(tokens(family.shape(), 1000), tokens(family.shape(), 2000));
  for (const int degree : {2, 4}) {
    const auto ranks = compute_cut(family.shape(), degree, family.weights(), batch);
    const ValuesByName gradients = whole_gradients(family.shape(), ranks);
    const Distance off =
        distance(family, {mean(ranks[0].losses), {}, family.taken_apart(gradients)});
    EXPECT_LE(off.worst, 1.0) << degree << " ranks: " << off.where;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TensorParallelFamilies, ::testing::ValuesIn(family_names()),
                         [](const auto& info) { return info.param; });

TEST(TensorParallelReference, PlainModelsGivePyTorchsLossAndGradients) {
  for (const auto& [name, degrees] : {std::pair<std::string, std::vector<int>>{"gpt2_tied", {2, 4}},
                                      {"gpt2_nobias_untied", {2, 4}},
                                      {"llama_gqa", {2}},
                                      {"llama_tied", {2, 4}}}) {
    const ReferenceCase reference(name);
    const std::int64_t rows = reference.shape().sequences;
    const MicroBatch batch =
        batch_of(reference.tokens(0, rows, 1000), reference.tokens(0, rows, 2000));
    for (const int degree : degrees) {
      const std::string where = fmt::format("{} on {} ranks", name, degree);
      const auto ranks = compute_cut(reference.shape(), degree, reference.weights(), batch);
      expect_relative(mean(ranks[0].losses), reference.json().at("loss"), 1e-6, where);
      expect_gradients(whole_gradients(reference.shape(), ranks), reference.json().at("parameters"),
                       where);
    }
  }
}

}  // namespace
}  // namespace sherd::testing
