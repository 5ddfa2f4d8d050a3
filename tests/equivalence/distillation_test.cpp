// Trainings with a teacher: PyTorch's numbers, and the same bits at every stage, on every world, and
// after a resume.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/inference/teacher_scoring.h"
#include "engine/launch/device.h"
#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "tests/support/models/tiny_llama.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Settings = std::map<std::string, std::string>;

json reference() {
  std::ifstream file(fs::path(SHERD_SOURCE_DIR) / "tests/reference/distillation.json");
  return json::parse(file);
}

class Distillation : public ::testing::Test {
 protected:
  Distillation() {
    test::write_tiny_llama(folder_, "model", stored_["config"]);
    test::write_tiny_llama(folder_, "teacher", stored_["config"], stored_["teacher_first"]);
    std::string lines;
    for (const json& text : stored_["texts"]) lines += json{{"text", text}}.dump() + "\n";
    folder_.write("texts.jsonl", lines);
    std::string long_text;
    for (int i = 0; i < 600; ++i) long_text += static_cast<char>('a' + i * i % 23 + i % 3);
    folder_.write("text.txt", long_text);
  }

  Settings settings(const std::string& output, const Settings& changes) const {
    Settings settings = {{"run.name", "distillation"},
                         {"run.output_dir", folder_.file(output)},
                         {"run.device", "cpu"},
                         {"run.num_threads", "1"},
                         {"model.from", folder_.file("model")},
                         {"checkpoint.init_from", folder_.file("model")},
                         {"data.path", folder_.file("text.txt")},
                         {"data.format", "bytes"},
                         {"data.validation_fraction", "0"},
                         {"training.seq_length", "16"},
                         {"training.global_batch_size", "4"},
                         {"training.max_steps", "4"},
                         {"training.sample_tokens", "0"},
                         {"optimizer.lr", "0.01"},
                         {"lr_scheduler.type", "constant"},
                         {"lr_scheduler.warmup_steps", "0"},
                         {"checkpoint.interval", "4"},
                         {"metrics.tensorboard", "false"},
                         {"distillation.teacher", folder_.file("teacher.safetensors")},
                         {"distillation.top_k", "8"},
                         {"distillation.temperature", "2"}};
    for (const auto& [key, value] : changes) settings[key] = value;
    return settings;
  }
  static engine::ResolvedRecipe resolved(const Settings& settings) {
    engine::RecipeRequest request;
    request.path = "distillation.yaml";
    request.text = "run: {name: distillation}\n";
    for (const auto& [key, value] : settings) request.sets.push_back(key + "=" + value);
    return engine::resolve_recipe(request);
  }
  engine::SavedTeacher save(const Settings& settings, const std::string& teacher = "teacher",
                            std::int64_t ranks = 1, const std::string& path = "",
                            std::int64_t top = 0) const {
    engine::TeacherRequest request;
    request.teacher.checkpoint = folder_.file(teacher);
    request.teacher.ranks = ranks;
    request.student = resolved(settings);
    request.top = top;
    request.path = path;
    return engine::save_teacher(request);
  }
  template <class Call>
  static std::string error_of(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::string train(const Settings& settings) const {
    return error_of([&] {
      const engine::ResolvedRecipe recipe = resolved(settings);
      engine::train(recipe, engine::choose_machine(recipe.values));
    });
  }
  std::vector<json> run(const std::string& output, const Settings& changes) const {
    EXPECT_EQ(train(settings(output, changes)), "");
    return metrics_of(folder_, output);
  }
  void expect_same(const Settings& first, const std::vector<Settings>& others) {
    const std::string one = fmt::format("first{}", ++number_);
    const std::vector<json> expected = run(one, first);
    ASSERT_EQ(expected.size(), 4u);
    ASSERT_TRUE(expected[0].contains("teacher_divergence"));
    for (const Settings& changes : others) {
      const std::string output = fmt::format("other{}", ++number_);
      EXPECT_EQ(run(output, changes), expected) << json(changes).dump();
      EXPECT_EQ(state_after(folder_, output, 4), state_after(folder_, one, 4));
    }
  }
  static Settings mesh(int world, int stage, int micro_steps, const Settings& more = {}) {
    Settings settings = {{"parallelism.data_parallel_shard_degree", std::to_string(world)},
                         {"zero_optimization.stage", std::to_string(stage)},
                         {"training.gradient_accumulation_steps", std::to_string(micro_steps)}};
    settings.insert(more.begin(), more.end());
    return settings;
  }

  const json stored_ = reference();
  const test::TempFolder folder_;
  int number_ = 0;
};

TEST_F(Distillation, TrainsAsPyTorchDoes) {
  const std::string count = std::to_string(stored_["texts"].size());
  int number = 0;
  for (const json& expected : stored_["runs"]) {
    const auto text = [&](const char* key) {
      return fmt::format("{}", expected[key].get<double>());
    };
    const Settings changes = {{"data.path", folder_.file("texts.jsonl")},
                              {"data.documents", "separate"},
                              {"data.packing", "none"},
                              {"training.seq_length", "24"},
                              {"training.global_batch_size", count},
                              {"training.micro_batch_size", count},
                              {"training.max_steps", "5"},
                              {"optimizer.type", "sgd"},
                              {"optimizer.momentum", "0"},
                              {"optimizer.weight_decay", "0"},
                              {"optimizer.lr", text("rate")},
                              {"gradient_clipping.max_norm", "0"},
                              {"checkpoint.interval", "0"},
                              {"distillation.top_k", std::to_string(expected["top"].get<int>())},
                              {"distillation.weight", text("weight")},
                              {"distillation.temperature", text("temperature")}};
    const std::string output = fmt::format("torch{}", number++);
    save(settings(output, changes));
    const std::vector<json> steps = run(output, changes);
    ASSERT_EQ(steps.size(), expected["steps"].size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const auto& [key, value] : expected["steps"][i].items()) {
        ASSERT_TRUE(steps[i].contains(key)) << key;
        const double theirs = value, ours = steps[i][key];
        EXPECT_NEAR(ours, theirs, 2e-5 * std::max(1.0, std::abs(theirs)))
            << output << ", step " << i + 1 << ", " << key;
      }
    }
  }
}

TEST_F(Distillation, ItsFileDoesNotDependOnRanksOrTheShapeOfSteps) {
  save(settings("a", {}));
  const std::string one = folder_.read("teacher.safetensors");
  save(settings("a", mesh(2, 3, 2)), "teacher", 3, folder_.file("other.safetensors"));
  EXPECT_EQ(folder_.read("other.safetensors"), one);
  EXPECT_FALSE(fs::exists(folder_.file("other.safetensors.tmp")));
}

TEST_F(Distillation, StagesWorldsAndPipelinesChangeNoBit) {
  save(settings("a", {}));
  const Settings pipeline = {{"parallelism.pipeline_parallel_degree", "2"}};
  expect_same(mesh(1, 0, 4), {mesh(4, 3, 1), mesh(2, 2, 2), mesh(1, 3, 4), mesh(1, 0, 4, pipeline),
                              mesh(2, 2, 2, pipeline)});
  const Settings bf16 = {{"mixed_precision.param_dtype", "bf16"}};
  expect_same(mesh(1, 0, 4, bf16), {mesh(2, 3, 2, bf16)});
  const Settings f16 = {{"mixed_precision.param_dtype", "f16"},
                        {"mixed_precision.reduce_dtype", "f32"}};
  expect_same(mesh(1, 0, 4, f16), {mesh(2, 2, 2, f16)});
  const Settings nf4 = {
      {"adapter.type", "lora"}, {"adapter.rank", "2"}, {"adapter.base_dtype", "nf4"}};
  expect_same(mesh(1, 0, 4, nf4), {mesh(2, 3, 2, nf4)});
}

TEST_F(Distillation, TensorAndContextRanksChangeNoBitWithCanonicalSums) {
  save(settings("a", {}));
  const auto canonical = [](Settings more) {
    more["parallelism.sum_order"] = "canonical";
    return mesh(1, 0, 4, more);
  };
  expect_same(canonical({}), {canonical({{"parallelism.tensor_parallel_degree", "2"}}),
                              canonical({{"parallelism.context_parallel_degree", "2"},
                                         {"parallelism.context_parallel_method", "all_gather"}})});
}

// 260 tokens of 260: the distribution itself.
TEST_F(Distillation, NothingIsLearnedFromOneself) {
  const Settings changes = {{"distillation.top_k", "260"},
                            {"distillation.weight", "1"},
                            {"optimizer.type", "sgd"},
                            {"optimizer.weight_decay", "0"}};
  save(settings("self", changes), "model");
  for (const json& step : run("self", changes)) {
    EXPECT_LT(std::abs(step["teacher_divergence"].get<double>()), 1e-5);
    EXPECT_LT(step["grad_norm"].get<double>(), 1e-4);
  }
}

TEST_F(Distillation, AResumedRunOnAnotherWorldReadsTheSameFile) {
  save(settings("a", {}));
  const std::vector<json> expected = run("whole", mesh(1, 0, 4));
  Settings part = mesh(1, 0, 4);
  part["training.max_steps"] = "2";
  part["checkpoint.interval"] = "2";
  run("parts", part);
  EXPECT_EQ(run("parts", mesh(2, 3, 2)), expected);
  EXPECT_EQ(state_after(folder_, "parts", 4), state_after(folder_, "whole", 4));

  const Settings more = {{"training.max_steps", "6"}};
  save(settings("a", more), "model", 1, folder_.file("others.safetensors"));
  const std::string of_others =
      train(settings("parts", {{"training.max_steps", "6"},
                               {"distillation.teacher", folder_.file("others.safetensors")}}));
  EXPECT_NE(of_others.find("isn't the teacher's file that this run began with"), std::string::npos)
      << of_others;
}

TEST_F(Distillation, RefusesFilesThatAreNotForThisRun) {
  const auto refused = [&](const Settings& changes, const std::string& words) {
    const std::string message = train(settings("refused", changes));
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  refused({}, "there is no such file");
  save(settings("a", {}));
  refused({{"training.max_steps", "5"}}, "has 16 samples, and the run's steps need 20");
  refused({{"training.seq_length", "15"}}, "other samples");
  refused({{"run.seed", "9"}}, "other samples");
  refused({{"distillation.top_k", "9"}}, "has 8 tokens for each token");
  refused({{"distillation.teacher", folder_.file("model/model.safetensors")}},
          "isn't a teacher's file");
  refused({{"training.z_loss_multiplier", "0.1"}}, "can't be combined");
  std::string bytes = folder_.read("teacher.safetensors");
  bytes[bytes.size() - 9] = static_cast<char>(bytes[bytes.size() - 9] ^ 4);
  folder_.write("teacher.safetensors", bytes);
  refused({}, "is damaged");
}

TEST_F(Distillation, RefusesTeachersThatDoNotFit) {
  const auto refused = [&](const auto& call, const std::string& words) {
    const std::string message = error_of(call);
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(folder_.file("teacher.safetensors")));
  };
  refused([&] { save(settings("a", {}), "teacher", 1, "", 261); }, "at most 260 tokens");
  json short_one = stored_["config"];
  short_one["max_position_embeddings"] = 8;
  test::write_tiny_llama(folder_, "short", short_one);
  refused([&] { save(settings("a", {}), "short"); }, "reads 8 tokens at most");
  json other = json::parse(folder_.read("teacher/tokenizer.json"));
  const std::int64_t id = other["model"]["vocab"]["a"];
  other["model"]["vocab"]["a"] = other["model"]["vocab"]["b"];
  other["model"]["vocab"]["b"] = id;
  folder_.write("teacher/tokenizer.json", other.dump());
  refused(
      [&] {
        save(settings("a", {{"data.format", "text"}, {"data.tokenizer", folder_.file("model")}}));
      },
      "need one vocabulary");
}

TEST_F(Distillation, CtrlCEndsScoringWithoutAFile) {
  engine::TeacherRequest request;
  request.teacher.checkpoint = folder_.file("teacher");
  request.teacher.ranks = 1;
  request.student = resolved(settings("a", {}));
  std::int64_t samples = 0;
  request.on_progress = [&](std::int64_t done, std::int64_t) {
    samples = done;
    std::raise(SIGINT);
  };
  EXPECT_THROW(engine::save_teacher(request), Interrupted);
  EXPECT_EQ(samples, 1);
  EXPECT_FALSE(fs::exists(folder_.file("teacher.safetensors")));
  EXPECT_FALSE(fs::exists(folder_.file("teacher.safetensors.tmp")));
}

TEST_F(Distillation, UsesTheMemoryThatWasPlanned) {
  save(settings("a", {}));
  for (const Settings& changes :
       {mesh(2, 3, 2), mesh(1, 0, 4, {{"parallelism.tensor_parallel_degree", "2"}}),
        mesh(1, 0, 4, {{"parallelism.pipeline_parallel_degree", "2"}}),
        mesh(1, 0, 4,
             {{"parallelism.context_parallel_degree", "2"},
              {"parallelism.context_parallel_method", "all_gather"}})}) {
    const std::string output = fmt::format("memory{}", ++number_);
    run(output, changes);
    const json memory = json::parse(folder_.read(output + "/memory.json"));
    const json& planned = memory["predicted"]["by_rank"];
    const json& measured = memory["measured"]["by_rank"];
    ASSERT_EQ(planned.size(), measured.size());
    for (std::size_t rank = 0; rank < planned.size(); ++rank) {
      for (const auto& [phase, bytes] : measured[rank]["by_phase"].items()) {
        if (!bytes.empty()) {
          EXPECT_EQ(bytes, planned[rank]["by_phase"][phase]) << output << " " << phase;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
