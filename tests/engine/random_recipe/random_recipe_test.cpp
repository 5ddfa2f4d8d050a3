// Random recipes through everything that a recipe goes through. A legal one plans, trains with
// planned = measured memory, saves, resumes at another stage and world, evaluates and samples, in
// each precision, whole or as an adapter; the bits are the same where they are promised. An illegal one is refused in one
// line. What aborts shows its number as the last line of the output: run it alone with
// SHERD_RECIPES=NUMBER..NUMBER+1.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/inspect.h"
#include "checkpoint/store/committed.h"
#include "engine/distillation/teacher_file.h"
#include "engine/inference/evaluate.h"
#include "engine/plan/report.h"
#include "engine/recipe/segments.h"
#include "engine/recipe/values.h"
#include "engine/run/run.h"
#include "engine/train/data_sources.h"
#include "engine/train/stage_epochs.h"
#include "tests/support/models/generated_text.h"
#include "tests/support/random/random_recipe.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::posix_disk;

engine::ResolvedRecipe resolved(const std::string& text) {
  return engine::resolve_recipe({.path = "random.yaml", .text = text, .sets = {}, .ranks = {}});
}

std::shared_ptr<const engine::Machine> processor() {
  return engine::cpu_machine();
}

class Trial {
 public:
  Trial() : folder_(test::memory_folder()) { write_recipe_data(folder_); }

  void run(int number) {
    fmt::print("recipe {}\n", number);
    std::fflush(stdout);
    Random random(static_cast<std::uint64_t>(number));
    for (const char* output : {"base", "first", "stage", "world"}) {
      fs::remove_all(folder_.file(output));
    }
    const Settings settings = legal_recipe(folder_, "first", random);
    if (std::getenv("SHERD_RECIPES")) fmt::print("{}\n", recipe_text(settings));
    SCOPED_TRACE(fmt::format("recipe {}:\n{}", number, recipe_text(settings)));
    for (int i = 0; i < 20; ++i) expect_refused(with_mistake(settings, random));
    expect_same_when_printed(recipe_text(settings));
    if (random.chance(0.05)) expect_planned(recipe_text(settings));
    if (!has_base(settings) || !trains(settings, "first")) return;
    go_on(settings, random);
    use_checkpoint(random);
  }

  int num_trained() const { return num_trained_; }
  int num_resumed() const { return num_resumed_; }
  int num_adapters() const { return num_adapters_; }

 private:
  void expect_refused(const Mistake& mistake) {
    const std::string text = recipe_text(mistake.settings);
    std::string said;
    try {
      resolved(text);
    } catch (const engine::RecipeErrors& errors) {
      said = errors.what();
      for (const std::string& line : errors.lines()) {
        EXPECT_EQ(line.find('\n'), std::string::npos) << line;
      }
    }
    EXPECT_NE(said, "") << "accepted, though " << mistake.key << " is wrong:\n" << text;
    if (said.empty()) return;
    // A broken rule may break another; one wrong value is one line.
    EXPECT_TRUE(mistake.key.empty() || said.find('\n') == std::string::npos) << said;
    const auto& fields = engine::recipe_fields();
    const bool named = std::any_of(fields.begin(), fields.end(), [&](const engine::Field& field) {
      return said.find(field.key) != std::string::npos;
    });
    EXPECT_TRUE(mistake.key.empty() ? named : said.find(mistake.key) != std::string::npos)
        << mistake.key << " isn't named: " << said;
  }

  // What recipe.yaml and every checkpoint hold is read again as it was.
  void expect_same_when_printed(const std::string& text) {
    const engine::ResolvedRecipe once = resolved(text);
    const engine::ResolvedRecipe twice = resolved(once.yaml());
    for (const engine::Field& field : engine::recipe_fields()) {
      EXPECT_EQ(engine::format_value(field, once.values), engine::format_value(field, twice.values))
          << field.key;
    }
  }

  void expect_planned(const std::string& text) {
    const engine::ResolvedRecipe recipe = resolved(text);
    const auto report = engine::plan_report(recipe, engine::device_limit(recipe.values));
    EXPECT_TRUE(report.fits());
    EXPECT_NE(engine::plan_text(report), "");
    EXPECT_FALSE(nlohmann::json::parse(engine::plan_json(report)).empty());
  }

  // What an adapter is for is there.
  bool has_base(const Settings& settings) {
    const std::optional<Settings> base = base_recipe(settings, folder_);
    if (!base) return true;
    SCOPED_TRACE("its base:\n" + recipe_text(*base));
    ++num_adapters_;
    return trains(*base, "base");
  }

  // The file that it learns from, if it has a teacher.
  void write_teacher(const engine::ResolvedRecipe& written) const {
    if (!written.values.distillation.active()) return;
    const engine::ResolvedRecipe recipe = engine::with_stage_steps(written);
    const auto batches = engine::open_batches(engine::segments_of(recipe));
    const engine::DistillationKeys& keys = recipe.values.distillation;
    const engine::TeacherShape shape{
        .rows = batches[0]->num_samples(
            engine::with_epoch_steps(recipe, batches[0]->num_steps()).values.training.max_steps),
        .seq_length = recipe.values.training.seq_length,
        .top = keys.top_k,
        .data = engine::hash_of_samples(*batches[0])};
    engine::TeacherWriter writer(posix_disk(), keys.teacher, shape);
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      std::vector<std::int32_t> ids;
      std::vector<float> values;
      for (std::int64_t i = 0; i < shape.of_row(); ++i) {
        ids.push_back(static_cast<std::int32_t>((i / shape.top + row + i % shape.top) %
                                                recipe.values.model.vocab_size));
        values.push_back(-0.7f * static_cast<float>(1 + i % shape.top));
      }
      writer.write(row, ids, values);
    }
    writer.finish();
  }

  // Whether it came to its end. Only overflows, which loss scaling expects, may end it before.
  bool trains(const Settings& settings, const std::string& output) {
    const engine::ResolvedRecipe recipe = resolved(recipe_text(settings));
    std::string failure;
    bool overflowed = false;
    ::testing::internal::CaptureStdout();  // and with it what gtest says
    try {
      write_teacher(recipe);
      engine::train(recipe, processor());
    } catch (const TrainingError& error) {
      failure = error.what();
      overflowed = recipe.values.loss_scaling.mode != engine::LossScaling::Mode::kNone;
    } catch (const std::exception& error) {
      failure = error.what();
    }
    ::testing::internal::GetCapturedStdout();
    EXPECT_TRUE(failure.empty() || overflowed) << failure;
    if (!failure.empty()) {
      EXPECT_EQ(failure.find('\n'), std::string::npos) << failure;
      return false;
    }
    expect_as_planned(output);
    expect_every_step(recipe.values, output);
    ++num_trained_;
    return !::testing::Test::HasFailure();
  }

  void expect_as_planned(const std::string& output) const {
    const auto memory = nlohmann::json::parse(folder_.read(output + "/memory.json"));
    const auto& planned = memory.at("predicted").at("by_rank");
    const auto& measured = memory.at("measured").at("by_rank");
    ASSERT_EQ(planned.size(), measured.size());
    for (std::size_t rank = 0; rank < planned.size(); ++rank) {
      for (const auto& [phase, bytes] : measured[rank].at("by_phase").items()) {
        if (bytes.empty()) continue;  // it never began
        EXPECT_EQ(bytes, planned[rank].at("by_phase").at(phase))
            << "rank " << rank << ", " << phase;
      }
    }
  }

  void expect_every_step(const engine::Recipe& recipe, const std::string& output) const {
    std::istringstream lines(folder_.read(output + "/metrics.jsonl"));
    std::int64_t last = -1;
    for (std::string line; std::getline(lines, line);) {
      const auto values = nlohmann::json::parse(line);
      if (!values.contains("loss")) continue;
      EXPECT_TRUE(last < 0 || values.at("step") == last + 1) << line;
      last = values.at("step");
    }
    EXPECT_EQ(last, recipe.training.max_steps);
  }

  std::string path_of(const std::string& output, std::int64_t step) const {
    return folder_.file(output + "/checkpoints/" + checkpoint::step_directory_name(step));
  }
  std::vector<std::int64_t> steps_of(const std::string& output) const {
    return checkpoint::committed_steps(posix_disk(), folder_.file(output + "/checkpoints"));
  }
  std::vector<std::string> state_of(const std::string& output, std::int64_t step) const {
    const Checkpoint saved(posix_disk(), path_of(output, step));
    std::vector<std::string> state = checkpoint::tensor_digests(saved);
    state.push_back(saved.manifest().global->at("counters").dump());
    return state;
  }

  // From an earlier checkpoint of the first run, in two folders of their own.
  void go_on(const Settings& settings, Random& random) {
    const std::vector<std::int64_t> steps = steps_of("first");  // newest first
    if (steps.size() < 2) return;
    for (const char* output : {"stage", "world"}) {
      const bool stage = output == std::string("stage");
      Settings next = stage ? at_another_stage(settings, random) : elsewhere(settings, random);
      next["run.output_dir"] = '"' + folder_.file(output) + '"';
      next["checkpoint.resume"] = "auto";
      SCOPED_TRACE("resumed with\n" + recipe_text(next));
      fs::create_directories(folder_.file(std::string(output) + "/checkpoints"));
      fs::copy(path_of("first", steps.back()), path_of(output, steps.back()),
               fs::copy_options::recursive);
      const std::string reference = "/reference.safetensors";  // of preferences
      if (fs::exists(folder_.file("first" + reference))) {
        fs::copy_file(folder_.file("first" + reference), folder_.file(output + reference));
      }
      if (!trains(next, output)) return;
      ++num_resumed_;
      if (!stage) continue;
      EXPECT_EQ(state_of(output, steps[0]), state_of("first", steps[0]));
    }
  }

  void use_checkpoint(Random& random) {
    const std::vector<std::int64_t> steps = steps_of("first");
    if (steps.empty()) return;
    engine::TrainedModelRequest request{.checkpoint = path_of("first", steps[0]),
                                        .ranks = random.whole(1, 3),
                                        .machine = processor()};
    const Checkpoint saved(posix_disk(), request.checkpoint);
    const auto recipe = resolved(saved.manifest().global->at("recipe")).values;
    const std::string text =
        test::generated_text(request, recipe.training.sample_prompt, {.num_tokens = 5, .seed = 3});
    EXPECT_EQ(text, test::generated_text(request, recipe.training.sample_prompt,
                                         {.num_tokens = 5, .seed = 3}));
    if (recipe.data.validation_path.empty() && recipe.data.validation_fraction < 0.1) return;
    if (recipe.preference.loss == engine::PreferenceLoss::kKto) return;
    if (recipe.preference.active()) request.sets = {"preference.loss=simpo"};
    EXPECT_TRUE(std::isfinite(engine::evaluate_checkpoint(request).loss));
  }

  test::TempFolder folder_;
  int num_trained_ = 0, num_resumed_ = 0, num_adapters_ = 0;
};

void try_recipes(int first, int end) {
  if (const char* numbers = std::getenv("SHERD_RECIPES")) {
    ASSERT_EQ(std::sscanf(numbers, "%d..%d", &first, &end), 2) << "SHERD_RECIPES=FIRST..END";
  }
  Trial trial;
  for (int number = first; number < end && !::testing::Test::HasFailure(); ++number) {
    trial.run(number);
  }
  if (::testing::Test::HasFailure()) return;
  // Most of them train more than once; otherwise this shows little. A few may all overflow.
  if (end - first < 100) return;
  EXPECT_GE(trial.num_trained(), (end - first) * 3 / 2);
  EXPECT_GE(trial.num_resumed(), (end - first) / 2);
  EXPECT_GE(trial.num_adapters(), (end - first) / 5);
}

// Under the address sanitizer each costs ten times as much.
#ifdef __SANITIZE_ADDRESS__
constexpr int kRecipes = 20;
#else
constexpr int kRecipes = 200;
#endif

TEST(RandomRecipe, TrainsAsPlannedAndGoesOnElsewhereOrIsRefusedInOneLine) {
  try_recipes(0, kRecipes);
}

TEST(RandomRecipeSlow, TrainsAsPlannedAndGoesOnElsewhereOrIsRefusedInOneLine) {
  try_recipes(1000, 11'000);
}

}  // namespace
}  // namespace sherd::testing
