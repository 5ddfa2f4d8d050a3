/// Whole runs on meshes against tests/reference/runs.json, which PyTorch computed in double precision: losses, norms,
/// the gradient of every parameter at every step, and the weights in the end.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/data/batcher.h"
#include "engine/train/token_feed.h"
#include "tests/engine/model/reference_case.h"
#include "tests/engine/model/reference_optimizers.h"

namespace sherd::testing {

/// How the six rows of a step are cut up.
struct ReferenceMesh {
  std::string name;
  int tensor = 1, context = 1, shards = 1, micro_steps = 1, stage = 0;
  bool sequence_parallel = false;
  model::ContextMethod method = model::ContextMethod::kUlysses;

  std::int64_t rows() const { return 6 / (shards * micro_steps); }
  RunShape setup(RunShape::Place place) const {
    return {.world_size = tensor * context * shards,
            .axes = {{"shard", shards}, {"context", context}, {"tensor", tensor}},
            .num_micro_steps = micro_steps,
            .stage = stage,
            .place = place};
  }
};

/// Tensor ranks that share the tokens; four of them, which hold copies of the Llama model's key/value heads, with
/// context ranks by `all_gather`; context ranks by `ulysses`.
inline std::vector<ReferenceMesh> reference_meshes() {
  return {{.name = "tensor 2 sharing tokens, shard 3",
           .tensor = 2,
           .shards = 3,
           .stage = 2,
           .sequence_parallel = true},
          {.name = "tensor 4 sharing tokens, context 2 by all_gather",
           .tensor = 4,
           .context = 2,
           .micro_steps = 2,
           .stage = 1,
           .sequence_parallel = true,
           .method = model::ContextMethod::kAllGather},
          {.name = "context 2 by ulysses, shard 2",
           .context = 2,
           .shards = 2,
           .micro_steps = 3,
           .stage = 3}};
}

/// What a plain f32 run of PyTorch strays by, times 2 to 30; `runs.py --float32`. Relative, of gradients to the
/// tensor's norm; projections and values of weights are absolute.
struct RunTolerance {
  double loss, gradient_norm, gradient_projection, gradient_value;
  double weight_norm, weight_projection, weight_value;

  static RunTolerance of(const std::string& optimizer) {
    // AdamW divides by gradients' own size, so their rounding comes back in the next step's.
    if (optimizer == "adamw") return {2e-6, 3e-5, 3e-4, 3e-5, 2e-6, 2e-4, 3e-6};
    return {2e-6, 5e-6, 2e-5, 3e-6, 1e-6, 5e-6, 2e-6};
  }
};

struct ReferenceRun {
  std::vector<engine::StepResult> steps;
  std::vector<ValuesByName> gradients;  ///< of each step
  ValuesByName parameters;              ///< after the last
};

inline ReferenceRun run_on(const ReferenceCase& reference, const engine::TrainingOptions& options,
                           const RunShape& setup, int num_steps) {
  ReferenceRun result;
  result.parameters = empty_parameters(options.model);
  result.gradients.assign(static_cast<std::size_t>(num_steps), result.parameters);
  engine::LaunchOptions launch = launch_options(setup);
  const bool on_gpu = setup.place == RunShape::Place::kGpu || setup.place == RunShape::Place::kGpus;
  place_ranks(launch, setup, [&](int r) {
    auto buffers = engine::training_buffers(
        options, {.mesh = mesh_of(setup),
                  .rank = r,
                  .num_threads = launch.compute_threads(),
                  .device = on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu});
    const auto batches = engine::batch_buffers(options);
    buffers.insert(buffers.end(), batches.begin(), batches.end());
    return buffers;
  });
  engine::run_ranks(launch, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    const data::BatchShape shape{.micro_batch_size = options.model.sequences,
                                 .num_micro_steps = options.num_micro_steps,
                                 .world = rank.data_degree(),
                                 .num_replicas = 1};
    engine::TokenFeed feed(
        options, rank, [&](std::int64_t step, std::int64_t micro, const auto& batch) {
          const std::int64_t rows_of_a_step =
              shape.micro_batch_size * shape.num_micro_steps * shape.world;
          const std::int64_t first =
              step * rows_of_a_step + shape.first_row(micro, rank.data_index());
          const auto fill = [&](const Tensor& ids, int kind) {
            const auto values = reference.tokens(first, shape.micro_batch_size, kind);
            std::copy(values.begin(), values.end(), ids.as<std::int32_t>());
          };
          fill(batch.inputs, 1000);
          fill(batch.targets, 2000);
        });
    feed.start(0);
    rank.guard([&] {
      set_parameters(model, reference.weights());
      for (int step = 0; step < num_steps; ++step) {
        const engine::StepResult taken = training_step.run(
            step, [&](std::int64_t at, std::int64_t micro) { return feed.next(at, micro); });
        if (rank.rank == 0) result.steps.push_back(taken);
        collect_gradients(model, result.gradients[static_cast<std::size_t>(step)]);
      }
      collect_parameters(model, result.parameters);
    });
    expect_memory_as_planned(static_cast<const Arena&>(*rank.memory), name_of(setup));
  });
  return result;
}

/// `digest`: norm, projection and two values.
inline void expect_digest(const std::vector<float>& values, const Json& parameter,
                          const Json& digest, const double (&tolerances)[3],
                          const std::string& where) {
  LeftOut null;
  if (!parameter.at("null").is_null()) null = {parameter.at("null")[0], parameter.at("null")[1]};
  const std::size_t n = values.size();
  EXPECT_NEAR(norm_of(values, null), digest[0].get<double>(), tolerances[0]) << where << " norm";
  EXPECT_NEAR(projection_of(values, parameter.at("number"), null), digest[1].get<double>(),
              tolerances[1])
      << where << " projection";
  EXPECT_NEAR(values[null.last > 0 ? null.first - 1 : n / 3], digest[2].get<double>(),
              tolerances[2])
      << where;
  EXPECT_NEAR(values[null.last > 0 ? null.last : 2 * n / 3], digest[3].get<double>(), tolerances[2])
      << where;
}

/// Each of the file's models with each of its optimizers on `mesh`.
inline void expect_runs_of_pytorch(const ReferenceMesh& mesh, RunShape::Place place) {
  const Json file = reference_file("runs");
  for (const Json& json : file.at("models")) {
    const ReferenceCase reference(json);
    for (const Json& run : json.at("runs")) {
      const std::string optimizer = run.at("optimizer");
      const std::string where = fmt::format(
          "{}, {}, {}", mesh.name, json.at("config").at("name").get<std::string>(), optimizer);
      const RunShape setup = mesh.setup(place);
      const Json& o = file.at("optimizers").at(optimizer);
      engine::TrainingOptions options;
      options.model = reference.shape();
      options.model.sequences = mesh.rows();
      options.model.part.sequence_parallel = mesh.sequence_parallel;
      options.model.context.method = mesh.method;
      options.optimizer = optimizer_options(optimizer, o);
      options.lr_schedule = schedule_of(file, o);
      options.max_norm = file.at("max_norm");
      options = applied(options, setup);
      const Json& steps = run.at("steps");
      const ReferenceRun actual = run_on(reference, options, setup, static_cast<int>(steps.size()));
      ASSERT_EQ(actual.steps.size(), steps.size()) << where;
      const RunTolerance allowed = RunTolerance::of(optimizer);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        const std::string at = fmt::format("{}: step {}", where, i);
        expect_relative(actual.steps[i].loss, steps[i].at("loss"), allowed.loss, at + " loss");
        expect_relative(actual.steps[i].grad_norm, steps[i].at("grad_norm"), allowed.loss,
                        at + " norm");
        for (const Json& parameter : json.at("parameters")) {
          const std::string name = parameter.at("name");
          const Json& digest = steps[i].at("gradients").at(name);
          const double norm = digest[0];
          expect_digest(actual.gradients[i].at(name), parameter, digest,
                        {allowed.gradient_norm * norm, allowed.gradient_projection * norm,
                         allowed.gradient_value * norm},
                        at + ", gradient of " + name);
        }
      }
      for (const Json& parameter : json.at("parameters")) {
        const std::string name = parameter.at("name");
        const Json& digest = run.at("after").at(name);
        expect_digest(actual.parameters.at(name), parameter, digest,
                      {allowed.weight_norm * digest[0].get<double>(), allowed.weight_projection,
                       allowed.weight_value},
                      where + ": " + name);
      }
    }
  }
}

}  // namespace sherd::testing
