// Whole runs with an adapter: what a checkpoint holds, what it may go on from, at which worlds and stages,
// and what becomes of it.

#include <gtest/gtest.h>

#include <filesystem>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/interchange/safetensors_folder.h"
#include "checkpoint/store/committed.h"
#include "engine/inference/evaluate.h"
#include "engine/inference/export.h"
#include "engine/run/run.h"
#include "tests/support/models/generated_text.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

class AdapterRun : public ::testing::Test {
 protected:
  AdapterRun() { write_data(folder_); }

  // One step of all weights; another seed is another model.
  std::string base(const std::string& name = "base", int seed = 3) const {
    train(name, fmt::format("run: {{seed: {}}}\n", seed), 1, 1);
    return folder_.file(name + "/checkpoints/step-0000000001");
  }

  void train(const std::string& output, const std::string& more, int max_steps, int ranks,
             int stage = 0, std::vector<std::string> sets = {}) const {
    engine::RecipeRequest request;
    request.path = "adapter.yaml";
    request.text = fmt::format(
        "model: {{num_layers: 2, hidden_size: 32, num_attention_heads: 4, num_kv_heads: 2, "
        "vocab_size: 256, max_seq_length: 16}}\ndata: {{path: {}}}\n"
        "training: {{seq_length: 16, global_batch_size: 4, micro_batch_size: 1, max_steps: {}}}\n"
        "zero_optimization: {{stage: {}, grad_sync: every_micro_step}}\n"
        "lr_scheduler: {{decay_steps: 8}}\n{}",
        folder_.file("data/*.txt"), max_steps, stage, more);
    request.ranks = ranks;
    request.sets = std::move(sets);
    request.sets.push_back("run.output_dir=" + folder_.file(output));
    request.sets.push_back("checkpoint.interval=4");
    ::testing::internal::CaptureStdout();
    try {
      engine::train(engine::resolve_recipe(request), engine::cpu_machine());
    } catch (...) {
      printed_ = ::testing::internal::GetCapturedStdout();
      throw;
    }
    printed_ = ::testing::internal::GetCapturedStdout();
  }

  static std::string adapter(const std::string& targets =
                                 "[attention.query, attention.value, "
                                 "mlp.gate_up]") {
    return "adapter: {type: lora, rank: 3, alpha: 6, dropout: 0.1, targets: " + targets +
           ", modules_to_save: [head, norm1]}\n";
  }
  static std::vector<std::string> from(const std::string& base) {
    return {"checkpoint.init_from=" + base};
  }
  std::string checkpoint(const std::string& output, int step = 8) const {
    return folder_.file(fmt::format("{}/checkpoints/step-{:010}", output, step));
  }

  test::TempFolder folder_{test::memory_folder()};
  mutable std::string printed_;
};

double loss_of(const std::string& model, const std::string& data, int ranks, int stage) {
  return engine::evaluate_checkpoint(
             {model,
              {"data.format=bytes", "data.validation_path=" + data, "training.seq_length=16",
               fmt::format("zero_optimization.stage={}", stage)},
              ranks,
              {}})
      .loss;
}

TEST_F(AdapterRun, GoesOnBitForBitAtAnotherStageAndWorld) {
  const std::string model = base();
  train("whole", adapter(), 8, 1, 0, from(model));
  train("parts", adapter(), 4, 1, 0, from(model));
  train("parts", adapter(), 8, 2, 3, from(model));
  EXPECT_NE(printed_.find("4 steps done"), std::string::npos) << printed_;
  EXPECT_EQ(final_state(folder_, "parts"), final_state(folder_, "whole"));
  std::vector<std::string> parts = numbers_of(folder_, "parts");
  // The run that ended at step 4 was evaluated there.
  ASSERT_EQ(std::erase_if(parts,
                          [](const std::string& line) {
                            return line.find("\"step\":4,\"val_loss\"") != std::string::npos;
                          }),
            1u);
  EXPECT_EQ(parts, numbers_of(folder_, "whole"));
}

// Whose base is loaded in parts of matrices, as values or as codes; and what is trained goes from mesh to mesh.
TEST_F(AdapterRun, GoesOnOnRanksThatHavePartsOfItsMatricesAndSequences) {
  const auto sets = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"model.hidden_size=128", "model.ffn_hidden_size=256",
                             "optimizer.type=sgd", "optimizer.lr=0.1"});
    return more;
  };
  train("base", "run: {seed: 3}\n", 1, 1, 0, sets({}));
  const std::string model = checkpoint("base", 1);
  for (const char* base : {"adapter.base_dtype=param_dtype", "adapter.base_dtype=nf4"}) {
    const std::vector<std::string> one = sets({from(model)[0], base});
    std::vector<std::string> cut = one, in_sequences = one;
    cut.push_back("parallelism.tensor_parallel_degree=2");
    in_sequences.push_back("parallelism.context_parallel_degree=2");
    const std::string name = base;
    train(name + "whole", adapter(), 8, 1, 0, one);
    train(name + "cut", adapter(), 4, 2, 3, cut);
    train(name + "cut", adapter(), 8, 1, 0, one);
    train(name + "one", adapter(), 4, 1, 0, one);
    train(name + "one", adapter(), 8, 1, 1, cut);
    train(name + "sequences", adapter(), 4, 1, 2, in_sequences);
    train(name + "sequences", adapter(), 8, 2, 2, cut);
    const std::string data = folder_.file("data/*.txt");
    const double expected = loss_of(checkpoint(name + "whole"), data, 1, 0);
    EXPECT_NE(expected, loss_of(checkpoint("base", 1), data, 1, 0));
    for (const char* run : {"cut", "one", "sequences"}) {
      EXPECT_NEAR(loss_of(checkpoint(name + run), data, 1, 0), expected, 1e-5 * expected) << run;
    }
  }
}

TEST_F(AdapterRun, WithAQuantisedBaseResumesBitForBitAndIsUsed) {
  const std::string model = base();
  std::vector<std::string> sets = from(model);
  train("plain", adapter(), 8, 1, 0, sets);
  sets.push_back("adapter.base_dtype=nf4");
  train("whole", adapter(), 8, 1, 0, sets);
  train("parts", adapter(), 4, 4, 2, sets);
  train("parts", adapter(), 8, 2, 3, sets);
  EXPECT_EQ(final_state(folder_, "parts"), final_state(folder_, "whole"));
  EXPECT_NE(final_state(folder_, "plain"), final_state(folder_, "whole"));
  const auto base_of = [&](const std::string& run) {
    return checkpoint::Checkpoint(checkpoint::posix_disk(), checkpoint(run))
        .manifest()
        .global->at("base");
  };
  EXPECT_EQ(base_of("whole"), base_of("plain")) << "the digest is of the values before rounding";
  const auto loss = [&](int ranks) {
    return engine::evaluate_checkpoint({checkpoint("whole"), {}, ranks, {}}).loss;
  };
  EXPECT_EQ(loss(1), loss(2));
  // Merged, it is the model that was trained: the base as its codes say.
  engine::ExportRequest merged{checkpoint("whole"), folder_.file("merged"), DType::kF32};
  merged.merge = true;
  engine::export_checkpoint(merged);
  const std::string data = folder_.file("data/*.txt");
  EXPECT_NEAR(loss_of(folder_.file("merged"), data, 1, 0), loss_of(checkpoint("whole"), data, 1, 0),
              2e-6);
  const std::string on_many = folder_.read("merged/model.safetensors");
  std::filesystem::remove_all(folder_.file("merged"));
  for (const std::int64_t ranks : {1, 5}) {
    merged.to = folder_.file(fmt::format("merged-{}", ranks));
    merged.ranks = ranks;
    engine::export_checkpoint(merged);
    EXPECT_TRUE(folder_.read(fmt::format("merged-{}/model.safetensors", ranks)) == on_many);
  }
  EXPECT_NE(test::error_text<UsageError>([&] {
              train("whole", adapter(), 9, 1, 0, from(model));
            }).find("adapter.base_dtype is nf4 in the checkpoint and param_dtype in the recipe"),
            std::string::npos);
}

// The digest of the base is that of one rank, too, though no rank of a pipeline has all of it.
TEST_F(AdapterRun, GoesOnBitForBitWithItsLayersOnSeveralRanks) {
  const std::string model = base();
  for (const char* type : {"param_dtype", "nf4"}) {
    std::vector<std::string> sets = from(model);
    sets.push_back(fmt::format("adapter.base_dtype={}", type));
    const std::string whole = fmt::format("whole {}", type), parts = fmt::format("parts {}", type);
    train(whole, adapter(), 8, 1, 0, sets);
    std::vector<std::string> pipelined = sets;
    pipelined.push_back("parallelism.pipeline_parallel_degree=2");
    train(parts, adapter(), 4, 2, 3, pipelined);
    pipelined.push_back("parallelism.pipeline_schedule=zb_h1");
    train(parts, adapter(), 6, 1, 1, pipelined);
    train(parts, adapter(), 8, 2, 2, sets);
    EXPECT_EQ(final_state(folder_, parts), final_state(folder_, whole));
    const auto base_of = [&](const std::string& run) {
      return checkpoint::Checkpoint(checkpoint::posix_disk(), checkpoint(run))
          .manifest()
          .global->at("base");
    };
    EXPECT_EQ(base_of(parts), base_of(whole));
  }
}

TEST_F(AdapterRun, AFrozenMatrixAtBothEndsOfAPipelineIsOneInTheBasesDigest) {
  std::vector<std::string> sets = {"model.tie_embeddings=true"};
  train("base", "", 1, 1, 0, sets);
  sets.push_back("checkpoint.init_from=" + checkpoint("base", 1));
  const std::string text = "adapter: {type: lora, rank: 3, targets: [attention.qkv]}\n";
  train("run", text, 4, 1, 0, sets);
  std::vector<std::string> pipelined = sets;
  pipelined.push_back("parallelism.pipeline_parallel_degree=2");
  train("run", text, 6, 1, 3, pipelined);  // refused, were it another base
  train("run", text, 8, 1, 0, sets);
  train("whole", text, 8, 1, 0, sets);
  EXPECT_EQ(final_state(folder_, "run"), final_state(folder_, "whole"));
}

// Parts of frozen matrices lie in every replica.
TEST_F(AdapterRun, ReplicasThatDivideTheOptimizerCountAFrozenMatrixOnce) {
  const std::string model = base();
  train("run", adapter(), 4, 1, 0, from(model));
  std::vector<std::string> divided = from(model);
  divided.insert(divided.end(), {"parallelism.data_parallel_replicate_degree=2",
                                 "zero_optimization.shard_optimizer_over_replicas=true"});
  for (const int shards : {1, 2}) {
    train("run", adapter(), 4 + 2 * shards, shards, 3, divided);  // refused, were it another base
  }
}

TEST_F(AdapterRun, SavesWhatIsTrainedAndTheBasesDigest) {
  const std::string model = base();
  train("run", adapter(), 4, 2, 2, from(model));
  const checkpoint::Checkpoint saved(checkpoint::posix_disk(), checkpoint("run", 4));
  for (const auto& tensor : saved.manifest().tensors) {
    const bool is_trained = tensor.name.find(".lora_") != std::string::npos ||
                            tensor.name == "head.weight" ||
                            tensor.name.find(".norm1.") != std::string::npos;
    EXPECT_TRUE(is_trained) << tensor.name;
  }
  // Parameter and two moments of A and B of three targets, and norm1, in 2 blocks; and the head.
  EXPECT_EQ(saved.manifest().tensors.size(), 3u * (2 * 7 + 1));
  const nlohmann::json base = saved.manifest().global->at("base");
  EXPECT_EQ(base.at("path"), model);
  EXPECT_EQ(base.at("digest").get<std::string>().size(), 16u);
  EXPECT_NE(printed_.find("M trained"), std::string::npos) << printed_;
}

TEST_F(AdapterRun, RefusesAnotherBaseInOneLine) {
  const std::string model = base(), other = base("other", 4);
  train("run", adapter(), 4, 1, 0, from(model));
  const std::string error =
      test::error_text<UsageError>([&] { train("run", adapter(), 8, 2, 3, from(other)); });
  EXPECT_TRUE(error.find("its adapter is for another model: the digest of " + other) !=
              std::string::npos)
      << error;
  EXPECT_EQ(std::ranges::count(error, '\n'), 0);
  // The same of a model that is only used.
  EXPECT_NE(test::error_text<UsageError>([&] {
              engine::evaluate_checkpoint(
                  {checkpoint("run", 4), {"checkpoint.init_from=" + other}, 1, {}});
            }).find("for another model"),
            std::string::npos);
}

TEST_F(AdapterRun, SaysWhatToSetWhereTheBaseHasMoved) {
  const std::string model = base();
  train("run", adapter(), 4, 1, 0, from(model));
  std::filesystem::rename(model, model + "-moved");
  EXPECT_EQ(test::error_text<UsageError>([&] { train("run", adapter(), 8, 1, 0, from(model)); }),
            "the weights of this adapter's base model are missing: there is no " + model +
                ". Set their location with --set checkpoint.init_from=FOLDER.");
}

TEST_F(AdapterRun, RefusesToBeTheModelOfAnotherRun) {
  const std::string model = base();
  train("run", adapter(), 4, 1, 0, from(model));
  for (const std::string& more : {std::string(), adapter()}) {
    EXPECT_EQ(test::error_text<UsageError>(
                  [&] { train("new", more, 4, 1, 0, from(checkpoint("run", 4))); }),
              checkpoint("run", 4) +
                  ": holds an adapter, not a whole model; `sherd export --merge` writes one.");
  }
}

TEST_F(AdapterRun, RefusesToGoOnWithAnotherRankOrTargets) {
  const std::string model = base();
  train("run", adapter(), 4, 1, 0, from(model));
  for (const char* set : {"adapter.rank=2", "adapter.targets=[mlp.down]", "adapter.type=none"}) {
    std::vector<std::string> sets = from(model);
    sets.emplace_back(set);
    const std::string key(std::string_view(set).substr(0, std::string_view(set).find('=')));
    EXPECT_NE(test::error_text<UsageError>([&] {
                train("run", adapter(), 8, 1, 0, sets);
              }).find(key + " is "),
              std::string::npos)
        << set;
  }
}

TEST_F(AdapterRun, IsEvaluatedExportedAndMergedAsOneModel) {
  const std::string model = base();
  train("run", adapter(), 8, 2, 3, from(model));
  const std::string trained = checkpoint("run"), data = folder_.file("data/*.txt");
  const double loss = loss_of(trained, data, 1, 0);
  EXPECT_EQ(loss_of(trained, data, 2, 3), loss);
  EXPECT_NE(loss_of(model, data, 1, 0), loss);
  engine::ExportRequest merged{trained, folder_.file("merged"), DType::kF32};
  merged.merge = true;
  engine::export_checkpoint(merged);
  EXPECT_NEAR(loss_of(folder_.file("merged"), data, 1, 0), loss, 2e-6);
  EXPECT_FALSE(test::generated_text({trained, {}, 1, {}}, "a", {.num_tokens = 3}).empty());
  merged.checkpoint = model;
  merged.to = folder_.file("other");
  EXPECT_EQ(test::error_text<UsageError>([&] { engine::export_checkpoint(merged); }),
            model + ": holds a whole model, so there is nothing to merge");
}

// Pairs of experts go with them: from one rank to ranks that divide the experts, and to others.
TEST_F(AdapterRun, OfExpertsGoesOnAtAnotherDegreeAndIsUsedAndMerged) {
  const std::string experts = "moe: {num_experts: 4}\n";
  train("base", "run: {seed: 3}\n" + experts, 1, 1);
  const std::string model = checkpoint("base", 1), data = folder_.file("data/*.txt");
  const std::string text =
      experts +
      "adapter: {type: lora, rank: 3, alpha: 6, targets: [attention.query, moe.experts.gate, "
      "moe.experts.up, moe.experts.down], modules_to_save: [norm1]}\n"
      "gradient_clipping: {max_norm: 0}\n";
  std::vector<std::string> divided = from(model);
  divided.emplace_back("parallelism.expert_parallel_degree=2");
  train("whole", text, 8, 1, 0, from(model));
  train("parts", text, 4, 2, 3, divided);
  train("parts", text, 6, 1, 0, from(model));
  train("parts", text, 8, 4, 1, divided);
  EXPECT_EQ(final_state(folder_, "parts"), final_state(folder_, "whole"));
  const double loss = loss_of(checkpoint("whole"), data, 1, 0);
  EXPECT_NE(loss, loss_of(model, data, 1, 0));
  EXPECT_EQ(loss_of(checkpoint("parts"), data, 2, 3), loss);
  engine::ExportRequest merged{checkpoint("whole"), folder_.file("merged"), DType::kF32};
  merged.merge = true;
  engine::export_checkpoint(merged);
  EXPECT_NEAR(loss_of(folder_.file("merged"), data, 1, 0), loss, 2e-6);
  EXPECT_FALSE(
      test::generated_text({checkpoint("whole"), {}, 1, {}}, "a", {.num_tokens = 3}).empty());
  // Of each of four experts in two blocks, as PEFT has them.
  engine::export_checkpoint({checkpoint("parts"), folder_.file("peft"), {}});
  const auto config = nlohmann::json::parse(folder_.read("peft/adapter_config.json"));
  EXPECT_EQ(config.at("target_modules"), nlohmann::json({"q_proj", "w1", "w3", "w2"}));
  const std::string file = folder_.read("peft/adapter_model.safetensors");
  EXPECT_NE(file.find("model.layers.1.block_sparse_moe.experts.3.w2.lora_B.weight"),
            std::string::npos);
}

TEST_F(AdapterRun, OfQueryKeyAndValueTogetherBecomesThreeOfPeftsWithTheSameA) {
  train("run", adapter("[attention.qkv]"), 4, 1, 0, from(base()));
  engine::export_checkpoint({checkpoint("run", 4), folder_.file("peft"), {}});
  const auto text = nlohmann::json::parse(folder_.read("peft/adapter_config.json"));
  EXPECT_EQ(text.at("target_modules"), nlohmann::json({"q_proj", "k_proj", "v_proj"}));
  EXPECT_EQ(text.at("modules_to_save"), nlohmann::json({"lm_head", "input_layernorm"}));
  const std::string file = folder_.read("peft/adapter_model.safetensors");
  const auto length =
      static_cast<unsigned char>(file[0]) + 256u * static_cast<unsigned char>(file[1]);
  const auto header = nlohmann::json::parse(file.substr(8, length));
  const auto bytes_of = [&](const std::string& module, const std::string& kind) {
    const auto offsets =
        header.at("base_model.model.model.layers.1.self_attn." + module + "." + kind + ".weight")
            .at("data_offsets");
    const std::size_t begin = offsets[0], end = offsets[1];
    return file.substr(8 + length + begin, end - begin);
  };
  EXPECT_EQ(bytes_of("q_proj", "lora_A"), bytes_of("v_proj", "lora_A"));
  EXPECT_EQ(bytes_of("q_proj", "lora_B").size(), 32u * 3 * 4);
  EXPECT_EQ(bytes_of("k_proj", "lora_B").size(), 16u * 3 * 4);
  EXPECT_NE(bytes_of("k_proj", "lora_B"), bytes_of("v_proj", "lora_B"));
}

}  // namespace
}  // namespace sherd::testing
