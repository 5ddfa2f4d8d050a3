// Runs with an adapter on GPUs: what they read of a base, and what they resume from.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/format/manifest.h"
#include "checkpoint/inspect.h"
#include "checkpoint/store/committed.h"
#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "tests/emulated_gpu/on_machine.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {
namespace {

constexpr int kAdapterSteps = 3;

class NcclAdapterRuns : public ::testing::Test {
 protected:
  NcclAdapterRuns() { write_data(folder_); }

  std::string checkpoint_of(const std::string& output) const {
    return folder_.file(output + "/checkpoints/" + checkpoint::step_directory_name(kAdapterSteps));
  }
  checkpoint::Checkpoint open(const std::string& output) const {
    return {checkpoint::posix_disk(), checkpoint_of(output)};
  }

  // Three steps of two sequences, saved after each.
  void train(const std::string& output, int ranks, int stage,
             const std::shared_ptr<const engine::Machine>& machine, const std::string& more,
             std::vector<std::string> sets = {}) const {
    engine::RecipeRequest request;
    request.path = "adapter.yaml";
    request.text = recipe_text(folder_, output,
                               {.stage = stage,
                                .world = ranks,
                                .precision = "mixed_precision: {param_dtype: f32}",
                                .optimizer = "adamw",
                                .accumulation = "micro_batch_size: 1",
                                .interval = 1,
                                .more = more,
                                .dropout = 0.0});
    sets.insert(sets.end(), {"training.global_batch_size=2", "data.validation_path=",
                             fmt::format("training.max_steps={}", kAdapterSteps)});
    request.sets = std::move(sets);
    engine::train(engine::resolve_recipe(request), machine);
  }

  std::vector<double> losses_of(const std::string& output) const {
    std::vector<double> losses;
    for (const std::string& line : numbers_of(folder_, output)) {
      const auto parsed = nlohmann::json::parse(line);
      if (parsed.contains("loss")) losses.push_back(parsed.at("loss").get<double>());
    }
    return losses;
  }

  test::TempFolder folder_{test::memory_folder()};
};

// Values of a base go through memory that holds a part of them at a time, on their way to codes, too.
TEST_F(NcclAdapterRuns, ReadTheirBaseAsOnTheCpuAndGoOnWithTheirBits) {
  train("base", 1, 0, engine::cpu_machine(), "");
  std::uint64_t seed = 0;
  for (const auto& [ranks, stage, dtype] : {std::tuple(1, 0, "param_dtype"), {2, 3, "nf4"}}) {
    const std::string name = dtype;
    SCOPED_TRACE(name);
    const std::string adapter = fmt::format(
        "adapter: {{type: lora, rank: 3, alpha: 6, base_dtype: {}, targets: "
        "[attention.query, mlp.gate_up], modules_to_save: [head]}}\n",
        dtype);
    const std::vector<std::string> from = {"checkpoint.init_from=" + checkpoint_of("base")};
    const auto train_on_gpus = [&, count = ranks, at = stage] {
      on_machine(count, ++seed,
                 [&] { train(name, count, at, engine::cuda_machine(count, {}), adapter, from); });
    };
    train(name + "cpu", ranks, stage, engine::cpu_machine(), adapter, from);
    train_on_gpus();
    EXPECT_EQ(open(name).manifest().global->at("base"),
              open(name + "cpu").manifest().global->at("base"));
    const std::vector<double> losses = losses_of(name), expected = losses_of(name + "cpu");
    ASSERT_EQ(std::ssize(losses), kAdapterSteps);
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-3) << i;

    const std::vector<std::string> whole = checkpoint::tensor_digests(open(name));
    std::filesystem::remove_all(checkpoint_of(name));
    train_on_gpus();
    EXPECT_EQ(checkpoint::tensor_digests(open(name)), whole);
    EXPECT_EQ(losses_of(name), losses);
  }
}

// A block's decoded weights are in whatever slot is free, and an evaluation changes which.
TEST_F(NcclAdapterRuns, OfA4BitBaseHaveTheirBitsWithGraphsAroundEvaluations) {
  const std::vector<std::string> shape = {"model.num_layers=4"};
  train("base", 1, 0, engine::cpu_machine(), "", shape);
  const std::string adapter =
      "adapter: {type: lora, rank: 3, alpha: 6, base_dtype: nf4, targets: [attention.query, "
      "mlp.down]}\n";
  const std::vector<std::string> sets = {
      "model.num_layers=4", "checkpoint.init_from=" + checkpoint_of("base"),
      "training.eval_interval=1", "data.validation_fraction=0.2", "training.eval_batches=2"};
  for (const bool graphs : {false, true}) {
    on_machine(1, 1, [&] {
      train(graphs ? "graphs" : "plain", 1, 0,
            engine::cuda_machine(1, {.stream = {.graphs = graphs}}), adapter, sets);
    });
  }
  EXPECT_EQ(numbers_of(folder_, "graphs"), numbers_of(folder_, "plain"));
}

}  // namespace
}  // namespace sherd::testing
