// Questions with choices on every kind of ranks. Values by transformers:
// tests/engine/inference/task_answers_test.cpp.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/train/evaluation.h"
#include "engine/train/task_rows.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

using Result = engine::EvaluationResult::Task;

// 29 questions with 2 to 4 choices, 86 in all: no multiple of any micro-batch or world.
data::Task questions(std::int32_t vocab_size) {
  data::Task task{.name = "small", .path = "", .questions = {}};
  const auto tokens = [&](int seed, int count) {
    std::vector<std::int32_t> ids;
    for (int t = 0; t < count; ++t) ids.push_back((31 * seed + 7 * t * t + 5 * t) % vocab_size);
    return ids;
  };
  for (int i = 0; i < 29; ++i) {
    data::Question question{.context = tokens(i, 1 + i * i % 41), .choices = {}, .answer = 1};
    for (int choice = 0; choice < 2 + i % 3; ++choice) {
      question.choices.push_back({tokens(i + 5 * choice + 3, 1 + (i + choice) % 6), 2 + choice});
    }
    task.questions.push_back(question);
  }
  return task;
}

class TaskScores : public ::testing::Test {
 protected:
  TaskScores() : options_(tiny_training(tiny_model(false))) {
    options_.model.num_layers = 2;
    set_length(320);
  }
  void set_length(std::int64_t length) {
    options_.model.seq_length = options_.model.max_positions = length;
  }

  Result scores(const RunShape& setup) const {
    const engine::TrainingOptions options = applied(options_, setup);
    std::string bytes;
    for (int i = 0; i < 1500; ++i) bytes.push_back(static_cast<char>(i * i % 37));
    const test::TempFolder folder;
    const data::Batcher batches(
        data::open_dataset({.path = folder.write("text.txt", bytes),
                            .validation_fraction = 0.5,
                            .vocab_size = options.model.vocab_size,
                            .seq_length = options.model.seq_length}),
        {.seq_length = options.model.seq_length, .micro_batch_size = options.model.sequences});
    const data::Task task = questions(static_cast<std::int32_t>(options.model.vocab_size));
    std::vector<Result> results(static_cast<std::size_t>(mesh_of(setup).world_size()));
    run_ranks(setup, [&](sharding::Rank& rank) {
      engine::ShardedModel model(options, rank);
      engine::Evaluation evaluation(options, model, batches, 2);
      rank.guard([&] {
        StopRequestCheck stop;
        const double before = evaluation.run(1).loss;
        results[static_cast<std::size_t>(rank.rank)] = evaluation.score(task, {}, stop.value);
        EXPECT_EQ(stop.value, engine::StopRequest::kNone);
        EXPECT_EQ(evaluation.run(1).loss, before) << "passes have their planned length again";
      });
    });
    for (const Result& result : results) {
      EXPECT_EQ(result.scores, results[0].scores);
      EXPECT_EQ(result.num_right, results[0].num_right);
    }
    EXPECT_EQ(results[0].num_questions, 29);
    EXPECT_EQ(results[0].scores.size(), 86u);
    return results[0];
  }

  engine::TrainingOptions options_;

 private:
  struct StopRequestCheck {
    engine::StopRequest value = engine::StopRequest::kNone;
  };
};

TEST_F(TaskScores, AreTheSameBitsAtEveryWorldAndStage) {
  const Result one = scores({});
  EXPECT_GT(one.num_right, 0);
  EXPECT_LT(one.num_right, 29);
  EXPECT_NE(one.num_right, one.num_right_by_bytes);
  for (int world = 2; world <= 4; ++world) {
    const RunShape setup{.world_size = world, .stage = world - 1, .delay_seed = 5};
    EXPECT_EQ(scores(setup).scores, one.scores) << name_of(setup);
  }
  const RunShape many{.world_size = 50, .stage = 3};  // of 44 rows
  EXPECT_EQ(scores(many).scores, one.scores);
}

TEST_F(TaskScores, AreTheSameBitsOnRanksWithPartsOfTheSequencesOrLayers) {
  const Result one = scores({});
  for (const auto method : {model::ContextMethod::kUlysses, model::ContextMethod::kAllGather,
                            model::ContextMethod::kRing}) {
    options_.model.context.method = method;
    const RunShape setup{.world_size = 4, .axes = {{"shard", 2}, {"context", 2}}, .stage = 2};
    if (method == model::ContextMethod::kRing) {
      const Result ring = scores(setup);  // merges blocks of attention
      for (std::size_t i = 0; i < one.scores.size(); ++i) {
        EXPECT_NEAR(ring.scores[i], one.scores[i], 1e-4);
      }
      continue;
    }
    EXPECT_EQ(scores(setup).scores, one.scores) << static_cast<int>(method);
  }
  options_.model.context.method = {};
  EXPECT_EQ(
      scores({.world_size = 2, .axes = {{"pipeline", 2}}, .num_micro_steps = 3, .stage = 1}).scores,
      one.scores);
}

TEST_F(TaskScores, AreNearOnRanksThatCutMatrices) {
  options_.model.ffn_width = 38;
  const Result one = scores({});
  const Result two = scores({.world_size = 4, .axes = {{"shard", 2}, {"tensor", 2}}, .stage = 3});
  for (std::size_t i = 0; i < one.scores.size(); ++i) {
    EXPECT_NEAR(two.scores[i], one.scores[i], 1e-4);
  }
}

TEST_F(TaskScores, DontDependOnTheLengthOfRowsOrOnOtherChoicesInThem) {
  const Result one = scores({});
  set_length(64);
  EXPECT_EQ(scores({}).scores, one.scores);
  set_length(320);
  options_.separate_documents = true;
  EXPECT_EQ(scores({.world_size = 2, .stage = 2}).scores, one.scores);
}

TEST(TaskRows, HaveOneChoiceOrAsManyAsFit) {
  const data::Task task = questions(41);
  const engine::TaskRows alone(task, 64, false), shared(task, 64, true);
  EXPECT_EQ(alone.count(), task.num_choices());
  EXPECT_LT(shared.count(), alone.count());
  EXPECT_EQ(shared.first_choice(shared.count()), task.num_choices());
  std::vector<std::int64_t> targets(static_cast<std::size_t>(task.num_choices()));
  for (std::int64_t row = 0; row < shared.count(); ++row) {
    for (const std::int64_t choice : shared.choices_of_targets(row)) {
      if (choice >= 0) ++targets[static_cast<std::size_t>(choice)];
    }
  }
  auto count = targets.begin();
  for (const data::Question& question : task.questions) {
    for (const data::Choice& choice : question.choices) {
      EXPECT_EQ(*count++, std::ssize(choice.tokens));
    }
  }
}

}  // namespace
}  // namespace sherd::testing
