// Compares what the ledger says that a step launches with what it launches on the emulated GPU.
#include <gtest/gtest.h>

#include "engine/schedule/order.h"
#include "tests/emulated_gpu/cuda_runtime_api.h"
#include "tests/emulated_gpu/ledger_counts.h"
#include "tests/fake_cuda/grouped.h"
#include "tests/kernels/expert_case.h"

namespace sherd::testing {
namespace {

using kernels::ExpertCase;
using kernels::ExpertsShape;
using kernels::Routes;
using optim::OptimizerType;

RunShape one_gpu(int micro_steps) {
  return {.num_micro_steps = micro_steps, .place = RunShape::Place::kGpu};
}

void expect_alike(const engine::TrainingOptions& options, const RunShape& setup) {
  const LaunchCounts launched = launched_in_a_step(options, setup);
  EXPECT_GT(launched.size(), 8u);
  EXPECT_EQ(text_of(in_the_ledger(options, setup)), text_of(launched));
}

TEST(Launches, OfAStepAreThoseInTheLedgerForEveryFormOfAModel) {
  std::vector<ModelForm> forms = model_forms();
  forms.push_back({"latents", shape_named(latent_forms(), "latents")});
  for (const ModelForm& form : forms) {
    SCOPED_TRACE(form.name);
    expect_alike(tiny_training(form.shape, 1.0f), one_gpu(1));
  }
}

// Whatever tokens choose, all rows fit into one round.
TEST(Launches, OfAStepAreThoseInTheLedgerForEveryMixtureOfExperts) {
  for (ModelForm form : all_expert_forms()) {
    SCOPED_TRACE(form.name);
    form.shape.moe.buffer_rows = form.shape.tokens() * form.shape.moe.per_token;
    expect_alike(tiny_training(form.shape, 1.0f), one_gpu(2));
  }
}

TEST(Launches, OfAStepAreThoseInTheLedgerForEveryOptimizer) {
  for (const OptimizerType type :
       {OptimizerType::kAdam, OptimizerType::kAdamW, OptimizerType::kSgd, OptimizerType::kLion,
        OptimizerType::kLamb, OptimizerType::kLars, OptimizerType::kMuon}) {
    SCOPED_TRACE(static_cast<int>(type));
    engine::TrainingOptions options = tiny_training(tiny_model(type == OptimizerType::kLamb), 1.0f);
    options.optimizer.type = type;
    expect_alike(options, one_gpu(2));
    if (type != OptimizerType::kMuon) continue;
    options.optimizer.muon_dtype = DType::kBF16;
    expect_alike(options, one_gpu(2));
  }
}

TEST(Launches, OfAStepIn16BitsAreThoseInTheLedger) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(name_of(dtype));
    model::ModelShape shape = tiny_model(false);
    shape.dtype = dtype;
    engine::TrainingOptions options = tiny_training(shape, 1.0f);
    options.precision = {dtype, DType::kF32, DType::kF32};
    if (dtype == DType::kF16) {
      options.loss_scaling.mode = optim::LossScaling::Mode::kDynamic;
      options.loss_scaling.initial_scale_power = 8;
    }
    expect_alike(options, one_gpu(1));
  }
}

// Sinks join what a library has computed; its own kernels aren't counted.
TEST(Launches, OfSinksAndLatentsAroundALibrarysAttentionAreThoseInTheLedger) {
  if (!emulated::has_fake_machine())
    GTEST_SKIP() << "needs the fake machine, whose attention is a library's";
  model::ModelShape sinks = shape_named(sink_forms(), "sinks_and_biases");
  sinks.head_size = 8;
  sinks.layer_kinds[0].window = 0;
  sinks.moe.buffer_rows = sinks.tokens() * sinks.moe.per_token;
  model::ModelShape latents = shape_named(latent_forms(), "latents");
  latents.layer_kinds = {};
  model::set_latent_attention(
      latents, {.kv_rank = 11, .query_rank = 9, .plain = 8, .rotated = 8, .value = 8});
  for (model::ModelShape shape : {sinks, latents}) {
    shape.dtype = DType::kBF16;
    shape.dropout = 0.0;
    engine::TrainingOptions options = tiny_training(shape, 1.0f);
    options.precision = {DType::kBF16, DType::kF32, DType::kF32};
    LaunchCounts ledger = in_the_ledger(options, one_gpu(2));
    const std::int64_t passes = 2 * shape.num_layers;
    EXPECT_EQ(ledger["attention_forward"], passes);
    EXPECT_EQ(ledger["join_attention_sinks"], shape.sinks ? passes : 0);
    EXPECT_EQ(ledger["split_latent_heads"], shape.sinks ? 0 : passes);
    std::erase_if(ledger, [](const auto& row) {
      return row.second == 0 || row.first == "attention_forward" ||
             row.first == "attention_backward";
    });
    EXPECT_EQ(text_of(ledger), text_of(launched_in_a_step(options, one_gpu(2))));
  }
}

// No head is clipped: a clip's launches depend on the scores.
TEST(Launches, OfAStepWithZLossAndAttentionScoresAreThoseInTheLedger) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    model::ModelShape shape = tiny_model(false);
    shape.dtype = dtype;
    shape.z_loss = 1e-4;
    shape.max_attention_logit = true;
    engine::TrainingOptions options = tiny_training(shape, 1.0f);
    options.precision = {dtype, DType::kF32, DType::kF32};
    options.qk_clip_threshold = 1e6;
    expect_alike(options, one_gpu(2));
  }
}

// The emulated matmul forms its sum from zero before it adds it, as cuBLASLt needn't.
TEST(AddingInMatmuls, GivesTheBitsOfAddingAfterThem) {
  for (const bool tied : {false, true}) {
    for (const int world : {1, 2}) {
      SCOPED_TRACE(fmt::format("tied {}, {} ranks", tied, world));
      model::ModelShape shape = tiny_model(tied);
      shape.dropout = 0.0;
      engine::TrainingOptions options = tiny_training(shape, 1.0f);
      RunShape setup = one_gpu(3);
      setup.world_size = world;
      setup.stage = world - 1;
      setup.grad_sync = sharding::GradSync::kBoundary;
      const Outcome apart = train(options, setup, 3);
      options.adds_in_matmuls = true;
      const Outcome added = train(options, setup, 3);
      EXPECT_EQ(difference(apart, added), "");
    }
  }
}

// Each form has its own gaps between what matmuls form and what not; a zero-bubble pipeline forms weights' gradients apart;
// a graph of the first micro-step isn't that of the second.
TEST(AddingInMatmuls, GivesTheBitsOfAddingAfterThemInEveryForm) {
  std::vector<std::pair<std::string, engine::TrainingOptions>> trainings;
  for (const ModelForm& form : model_forms()) {
    trainings.emplace_back(form.name, tiny_training(form.shape, 1.0f));
  }
  RunShape setup = one_gpu(2);
  setup.grad_sync = sharding::GradSync::kBoundary;
  for (auto& [name, options] : trainings) {
    SCOPED_TRACE(name);
    options.model.dropout = 0.0;
    const Outcome apart = train(options, setup, 2);
    options.adds_in_matmuls = true;
    EXPECT_EQ(difference(apart, train(options, setup, 2)), "");
    RunShape graphs = setup;
    graphs.cuda_graphs = true;
    EXPECT_EQ(difference(apart, train(options, graphs, 2)), "") << "with graphs";
  }
}

TEST(AddingInMatmuls, GivesTheBitsOfAddingAfterThemInAPipelineWithoutBubbles) {
  model::ModelShape shape = tiny_model(true);
  shape.num_layers = 4;
  engine::TrainingOptions options = tiny_training(shape, 1.0f);
  options.pipeline.order = schedule::Order::kZbH1;
  RunShape setup = one_gpu(4);
  setup.world_size = 2;
  setup.axes = {{"pipeline", 2}};
  setup.grad_sync = sharding::GradSync::kBoundary;
  const Outcome apart = train(options, setup, 2);
  options.adds_in_matmuls = true;
  EXPECT_EQ(difference(apart, train(options, setup, 2)), "");
}

TEST(AddingInMatmuls, LaunchesWhatTheLedgerSays) {
  engine::TrainingOptions options = tiny_training(tiny_model(false), 1.0f);
  RunShape setup = one_gpu(3);
  setup.grad_sync = sharding::GradSync::kBoundary;
  const auto ledger = [&] {
    return engine::step_ledger({applied(options, setup), mesh_of(setup), {}, 0},
                               engine::h100_rates());
  };
  const auto added_bytes = [](const engine::StepLedger& step) {
    std::int64_t bytes = 0;
    for (const engine::LedgerRow& row : step.rows) bytes += row.name == "add" ? row.read : 0;
    return bytes;
  };
  const std::int64_t apart = added_bytes(ledger());
  options.adds_in_matmuls = true;
  expect_alike(options, setup);
  EXPECT_LT(added_bytes(ledger()), apart / 4);  // norms and the embedding are left
}

// The fake cuDNN has the bits of the emulated matmuls, so grouped products change nothing.
TEST(GroupedProducts, HaveTheBitsOfALoopHoweverTokensChoose) {
  const int before = fake_cuda::grouped_products();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const Routes kind : {Routes::kRandom, Routes::kFirstExperts, Routes::kLastExperts}) {
      for (const auto& [tokens, buffer] : {std::pair(1, 512), {90, 512}, {700, 700}, {700, 1400}}) {
        SCOPED_TRACE(fmt::format("{} tokens, routes {}", tokens, static_cast<int>(kind)));
        ExpertsShape shape{
            .tokens = tokens, .width = 24, .experts = 7, .ffn_width = 16, .per_token = 2};
        shape.buffer_rows = buffer;
        shape.buffer_rows = kernels::experts_buffer_rows(shape);
        ExpertCase c{.shape = shape, .dtype = dtype, .chosen = routes(shape, kind, 5)};
        const test::Work work = [&](test::Place& place) { return both_ways(place, c); };
        const test::Outputs loop = test::on_gpu(work);
        c.shape.grouped = true;
        EXPECT_TRUE(test::same_bits(test::on_gpu(work), loop));
      }
    }
  }
  EXPECT_GT(fake_cuda::grouped_products(), before);
}

TEST(GroupedProducts, ChangeNoBitOfARun) {
  for (const int stage : {0, 3}) {
    const RunShape setup{.world_size = 2, .stage = stage, .place = RunShape::Place::kGpu};
    EXPECT_EQ(
        difference(train(expert_training(true), setup, 2), train(expert_training(false), setup, 2)),
        "");
  }
}

// Whatever tokens choose, all rows fit into one round.
TEST(GroupedProducts, OfAStepAreThoseInTheLedger) {
  if (!emulated::has_fake_machine())
    GTEST_SKIP() << "needs the fake machine, whose attention is a library's";
  engine::TrainingOptions options = expert_training(true);
  options.model.moe.buffer_rows = options.model.tokens() * options.model.moe.per_token;
  const RunShape setup{.num_micro_steps = 2, .place = RunShape::Place::kGpu};
  const auto products_of = [&](int steps) {
    const int before = fake_cuda::grouped_products();
    train(options, setup, steps);
    return fake_cuda::grouped_products() - before;
  };
  const engine::StepLedger step =
      engine::step_ledger({applied(options, setup), mesh_of(setup), {}, 0}, engine::h100_rates());
  std::int64_t products = 0;
  for (const engine::LedgerRow& row : step.rows) {
    if (row.name == "experts (grouped products)") products += row.launches;
  }
  EXPECT_GT(products, 0);
  EXPECT_EQ(products_of(2) - products_of(1), products);
  LaunchCounts ledger = in_the_ledger(options, setup);
  EXPECT_EQ(ledger["experts (offsets)"], products);
  std::erase_if(ledger, [](const auto& row) { return row.first.starts_with("attention_"); });
  EXPECT_EQ(text_of(ledger), text_of(launched_in_a_step(options, setup)));
}

}  // namespace
}  // namespace sherd::testing
