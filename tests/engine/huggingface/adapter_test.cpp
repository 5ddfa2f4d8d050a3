// Adapters against PEFT: tests/reference/huggingface/adapters.py computed in float64 what gradients of tiny
// models are, and 20 steps of AdamW; families that stack, turn and reorder rows among them. Those of experts are of
// expert_adapters.py.

#include "engine/inference/adapter_export.h"
#include "engine/launch/launch.h"
#include "engine/saving/base_model.h"
#include "engine/saving/checkpointing.h"
#include "engine/train/training_step.h"
#include "tests/engine/huggingface/folder_support.h"
#include "tests/support/models/model_values.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::engine {
namespace {

using huggingface::NamedShape;
using testing::ValuesByName;

// Element by element, the place of each value.
void each_element(const huggingface::WeightMap& map,
                  const std::function<void(const huggingface::Link&, std::int64_t ours,
                                           std::int64_t theirs)>& use) {
  for (const huggingface::Link& link : map.links) {
    for (std::int64_t number = 0; number < link.box.numel(); ++number) {
      std::int64_t rest = number, ours = link.box.to, theirs = link.box.from;
      for (auto axis = link.box.axes.rbegin(); axis != link.box.axes.rend(); ++axis) {
        ours += rest % axis->count * axis->to_stride;
        theirs += rest % axis->count * axis->from_stride;
        rest /= axis->count;
      }
      use(link, ours, theirs);
    }
  }
}

ValuesByName ours_of(const huggingface::WeightMap& map) {
  ValuesByName values;
  for (const NamedShape& shape : map.ours) {
    values[shape.name].resize(static_cast<std::size_t>(shape.numel()));
  }
  each_element(map, [&](const huggingface::Link& link, std::int64_t ours, std::int64_t theirs) {
    const NamedShape& from = map.theirs[static_cast<std::size_t>(link.theirs)];
    // A trained module begins as the model has it, under its own name.
    const std::string name = from.name.find(".lora_") == std::string::npos
                                 ? from.name.substr(std::string("base_model.model.").size())
                                 : from.name;
    values[map.ours[static_cast<std::size_t>(link.ours)].name][static_cast<std::size_t>(ours)] =
        weight_of(name, from.shape.size() == 1, theirs);
  });
  return values;
}

ValuesByName theirs_of(const huggingface::WeightMap& map, const ValuesByName& values) {
  ValuesByName theirs;
  for (const NamedShape& shape : map.theirs) {
    theirs[shape.name].resize(static_cast<std::size_t>(shape.numel()));
  }
  each_element(map, [&](const huggingface::Link& link, std::int64_t ours, std::int64_t from) {
    theirs[map.theirs[static_cast<std::size_t>(link.theirs)].name][static_cast<std::size_t>(from)] =
        values.at(
            map.ours[static_cast<std::size_t>(link.ours)].name)[static_cast<std::size_t>(ours)];
  });
  return theirs;
}

// norm, then four elements: the script's summary.
void expect_summary(const std::vector<float>& values, const json& expected, double relative,
                    const std::string& label) {
  double squares = 0.0;
  for (const float value : values) squares += double{value} * double{value};
  const double norm = expected[0], size = norm / std::sqrt(static_cast<double>(values.size()));
  EXPECT_NEAR(std::sqrt(squares), norm, relative * norm) << label;
  const std::size_t n = values.size();
  const std::size_t at[] = {0, n / 3, 2 * n / 3, n - 1};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(values[at[i]], expected[i + 1].get<double>(), 10 * relative * size) << label;
  }
}

class AdapterFolder : public Folder, public ::testing::WithParamInterface<std::string> {
 protected:
  Recipe adapter_recipe(const std::string& name, int stage, int ranks) {
    const json& one = adapters().at(name);
    const std::string model = write_model(one["model"]);
    RecipeRequest request;
    request.path = "adapter.yaml";
    request.text = fmt::format(
        "model: {{from: {}}}\nadapter: {{type: lora, rank: {}, alpha: {}, rslora: {}, targets: {}, "
        "modules_to_save: {}}}\ndata: {{path: none, format: bin}}\n"
        "training: {{seq_length: 16, global_batch_size: 2, max_steps: 20}}\n"
        "optimizer: {{lr: 0.002, weight_decay: 0.1}}\ngradient_clipping: {{max_norm: "
        "0}}\n"
        "lr_scheduler: {{type: constant}}\nzero_optimization: {{stage: {}}}\n"
        "moe: {{balance_loss: 0}}\n",
        model, one["rank"].dump(), one["alpha"].dump(), one["rslora"].dump(), one["targets"].dump(),
        one["modules_to_save"].dump(), stage);
    request.ranks = ranks;
    request.reads_data = false;
    return resolve_recipe(request).values;
  }
};

std::vector<std::string> names_of_adapter_cases() {
  std::vector<std::string> names;
  for (const auto& [name, one] : adapters().items()) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Cases, AdapterFolder, ::testing::ValuesIn(names_of_adapter_cases()),
                         [](const auto& info) { return info.param; });

struct AdapterRun {
  std::vector<double> losses;
  ValuesByName gradients, after;  // of PEFT's tensors
  std::vector<std::string> digests;
};

AdapterRun run_adapter(const Recipe& recipe, const huggingface::WeightMap& map, int num_steps) {
  const TrainingOptions options = training_options(recipe);
  AdapterRun run;
  ValuesByName gradients = ours_of(map), after = gradients;
  const ValuesByName first = gradients;
  std::mutex mutex;
  LaunchOptions launch;
  launch.mesh = mesh_of(recipe);
  run_ranks(launch, [&](sharding::Rank& rank) {
    ShardedModel model(options, rank);
    TrainingStep step(options, model);
    const std::int64_t rows = 2 / rank.world_size(), tokens = 16 * rows;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens) + 1);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto t = static_cast<std::int64_t>(i) + rank.rank * tokens;
      ids[i] = static_cast<std::int32_t>((3 * t * t + 7 * t) % 56);
    }
    rank.guard([&] {
      std::vector<char> reading(static_cast<std::size_t>(checkpoint_reading_buffer().bytes()));
      const std::string digest =
          load_base_model(BaseModel(options, recipe.checkpoint.init_from), options, model,
                          {reading.data(), DType::kU8, std::ssize(reading)}, {});
      testing::set_parameters(model, first);
      for (int i = 0; i < num_steps; ++i) {
        const StepResult result = step.run(i, [&](std::int64_t, std::int64_t) {
          return TokenBatch{.inputs = {ids.data(), DType::kI32, tokens},
                            .targets = {ids.data() + 1, DType::kI32, tokens},
                            .first_row = rank.rank * rows};
        });
        if (rank.rank == 0) run.losses.push_back(result.loss);
        if (i == 0) testing::collect_gradients(model, gradients);
      }
      testing::collect_parameters(model, after);
      const std::lock_guard lock(mutex);
      run.digests.push_back(digest);
    });
  });
  run.gradients = theirs_of(map, gradients);
  run.after = theirs_of(map, after);
  return run;
}

TEST_P(AdapterFolder, HasPeftsGradientsAndLossesOverTwentySteps) {
  const json& one = adapters().at(GetParam());
  std::string digest;
  for (const int stage : {0, 1, 3}) {
    const Recipe recipe = adapter_recipe(GetParam(), stage, stage == 0 ? 1 : 2);
    const auto config = huggingface::read_config(checkpoint::posix_disk(), recipe.model.from);
    const huggingface::WeightMap map =
        huggingface::adapter_map(*config.family, model_weights(training_options(recipe)),
                                 adapter_weights(recipe))
            .weights;
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (const NamedShape& shape : map.theirs) shapes[shape.name] = shape.shape;
    ASSERT_EQ(shapes.size(), one["tensors"].size());
    const AdapterRun run = run_adapter(recipe, map, 20);
    for (std::size_t i = 0; i < one["losses"].size(); ++i) {
      const double expected = one["losses"][i];
      EXPECT_NEAR(run.losses[i], expected, 5e-6 * expected) << "stage " << stage << ", step " << i;
    }
    for (const auto& [name, tensor] : one["tensors"].items()) {
      ASSERT_TRUE(shapes.contains(name)) << name;
      EXPECT_EQ(json(shapes.at(name)), tensor["shape"]) << name;
      expect_summary(run.gradients.at(name), tensor["gradient"], 2e-5, name + " gradient");
      expect_summary(run.after.at(name), tensor["after"], 1e-4, name + " after");
    }
    // The digest of the base knows neither stage nor world.
    for (const std::string& own : run.digests) {
      if (digest.empty()) digest = own;
      EXPECT_EQ(own, digest);
    }
    EXPECT_EQ(digest_of_base(BaseModel(training_options(recipe), recipe.checkpoint.init_from),
                             training_options(recipe)),
              digest);
  }
}

}  // namespace
}  // namespace sherd::engine
