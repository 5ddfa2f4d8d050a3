// Folders of mixtures of experts: losses and gradients are those that tests/reference/huggingface/experts.py computed
// with transformers in float64, and a folder comes back byte for byte.

#include "engine/huggingface/config.h"
#include "engine/inference/merge.h"
#include "engine/model/parameters.h"
#include "tests/engine/huggingface/folder_support.h"

namespace sherd::engine {
namespace {

const json& experts() {
  static const json kCases = [] {
    std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/engine/huggingface/experts.json");
    return json::parse(file);
  }();
  return kCases;
}

std::vector<std::string> names_of_cases() {
  std::vector<std::string> names;
  for (const auto& [name, one] : experts().items()) names.push_back(name);
  return names;
}

class ExpertFolder : public Folder, public ::testing::WithParamInterface<std::string> {
 protected:
  std::string write(const std::string& name) {
    folder_.write(name + "/config.json", experts().at(name)["config"].get<std::string>());
    folder_.write(name + "/model.safetensors", weights_file(experts().at(name), DType::kF32));
    return folder_.file(name);
  }
  // A step of plain descent with the row of tokens that the script takes, without losses of balance.
  std::string one_step(const std::string& model) const {
    return "model: {from: " + model + "}\ndata: {path: " + folder_.file("tokens.bin") +
           ", format: bin, validation_fraction: 0}\n" +
           fmt::format("training: {{seq_length: {}, global_batch_size: 1, max_steps: 1}}\n",
                       kTokens - 1) +
           "moe: {balance_loss: 0}\noptimizer: {type: sgd, momentum: 0, lr: 1, weight_decay: 0}\n"
           "lr_scheduler: {type: constant, warmup_steps: 0}\ngradient_clipping: {max_norm: 0}\n"
           "checkpoint: {init_from: " +
           model + ", interval: 1}\n";
  }
  // Of a model that isn't trained.
  bool is_only_evaluated() const { return GetParam().starts_with("phimoe"); }
  void expect_same_tensors(const std::string& out, const std::string& what) const {
    const json header = json::parse(experts().at(GetParam())["header"].get<std::string>());
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      EXPECT_EQ(tensor(out, name), tensor(GetParam(), name)) << name << what;
    }
  }
  std::vector<float> tensor(const std::string& folder, const std::string& name) const {
    const std::string bytes = folder_.read(folder + "/model.safetensors");
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    const json header = json::parse(bytes.substr(8, length));
    const std::size_t begin = header.at(name)["data_offsets"][0],
                      end = header.at(name)["data_offsets"][1];
    std::vector<float> values((end - begin) / sizeof(float));
    std::memcpy(values.data(), bytes.data() + 8 + length + begin, end - begin);
    return values;
  }
};
INSTANTIATE_TEST_SUITE_P(Families, ExpertFolder, ::testing::ValuesIn(names_of_cases()),
                         [](const auto& info) { return info.param; });

TEST_P(ExpertFolder, HasTheLossThatTransformersComputesAtEveryStage) {
  write_tokens();
  const std::string model = write(GetParam());
  for (const int stage : {0, 3}) {
    const EvaluationResult result = evaluate_checkpoint(
        {model,
         {"data.format=bin", "data.validation_path=" + folder_.file("tokens.bin"),
          fmt::format("training.seq_length={}", kTokens - 1),
          fmt::format("zero_optimization.stage={}", stage)},
         stage == 0 ? 1 : 2,
         {}});
    EXPECT_NEAR(result.loss, experts().at(GetParam())["loss"].get<double>(), 2e-6) << stage;
  }
}

TEST_P(ExpertFolder, HasTheGradientOfEveryTensor) {
  if (is_only_evaluated()) GTEST_SKIP() << "it is only evaluated";
  write_tokens();
  const std::string model = write(GetParam());
  train(one_step(model), "run", 0, 1);
  ExportRequest request{checkpoint("run"), folder_.file("after"), {}};
  request.stack_experts = GetParam().ends_with("_stacked");
  export_checkpoint(request);
  for (const auto& [name, samples] : experts().at(GetParam())["gradients"].items()) {
    const std::vector<float> before = tensor(GetParam(), name), after = tensor("after", name);
    double largest = 0.0;
    for (const auto& sample : samples)
      largest = std::max(largest, std::abs(sample[1].get<double>()));
    for (const auto& sample : samples) {
      const std::size_t i = sample[0];
      const double gradient = static_cast<double>(before[i]) - static_cast<double>(after[i]);
      EXPECT_NEAR(gradient, sample[1].get<double>(), 2e-6 + 2e-4 * largest) << name << " " << i;
    }
  }
}

TEST_P(ExpertFolder, ComesBackByteForByte) {
  if (is_only_evaluated()) GTEST_SKIP() << "it is only evaluated";
  write_tokens();
  const std::string model = write(GetParam());
  for (const int stage : {0, 2, 3}) {
    const std::string run = fmt::format("run{}", stage), out = fmt::format("out{}", stage);
    train(recipe(model, "moe: {balance_loss: 0}\n"), run, stage, stage == 0 ? 1 : 2);
    ExportRequest request{checkpoint(run), folder_.file(out), {}};
    request.stack_experts = GetParam().ends_with("_stacked");
    export_checkpoint(request);
    expect_same_tensors(out, fmt::format(", stage {}", stage));
  }
}

// Each rank reads and saves its own rows. Sizes of a family may leave few degrees.
TEST_P(ExpertFolder, ComesBackFromTensorRanksAndExpertRanks) {
  if (is_only_evaluated()) GTEST_SKIP() << "it is only evaluated";
  write_tokens();
  const std::string model = write(GetParam());
  int divided = 0;
  for (const char* axis : {"tensor", "expert"}) {
    for (const int ranks : {2, 3, 5}) {
      const std::string run = fmt::format("{}{}", axis, ranks), out = "of_" + run;
      try {
        train(recipe(model, "moe: {balance_loss: 0}\n"), run, 2, ranks,
              {fmt::format("parallelism.{}_parallel_degree={}", axis, ranks),
               "training.global_batch_size=30"});
      } catch (const UsageError& error) {
        const std::string text = error.what();
        EXPECT_TRUE(text.find("would do") != std::string::npos ||
                    text.find("divide") != std::string::npos)
            << text;
        continue;
      }
      ExportRequest request{checkpoint(run), folder_.file(out), {}};
      request.stack_experts = GetParam().ends_with("_stacked");
      export_checkpoint(request);
      expect_same_tensors(out, ", " + run);
      ++divided;
    }
  }
  EXPECT_GE(divided, 1);
}

// The mean of a folder and itself has its bytes. Experts that lie in one tensor are written apart.
TEST_P(ExpertFolder, ComesBackFromAMerge) {
  if (GetParam().ends_with("_stacked")) GTEST_SKIP() << "a merge writes each expert";
  const std::string model = write(GetParam());
  merge_models({{model, model}, {}, folder_.file("merged")});
  expect_same_tensors("merged", "");
}

class OnlyEvaluated : public ExpertFolder {};
INSTANTIATE_TEST_SUITE_P(Phimoe, OnlyEvaluated, ::testing::Values("phimoe"));

TEST_P(OnlyEvaluated, IsntTrained) {
  write_tokens();
  const std::string model = write(GetParam());
  const std::string error =
      test::error_text<UsageError>([&] { train(one_step(model), "run", 0, 1); });
  EXPECT_NE(error.find("moe.score is sparsemixer, whose training draws experts with noise"),
            std::string::npos)
      << error;
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 0) << error;
}

class WithoutStacks : public ExpertFolder {};
INSTANTIATE_TEST_SUITE_P(Families, WithoutStacks, ::testing::Values("llama4_text", "gpt_oss"));

TEST_P(WithoutStacks, SaySoWhenTheyAreAskedFor) {
  write_tokens();
  train(recipe(write(GetParam()), "moe: {balance_loss: 0}\n"), "run", 0, 1);
  ExportRequest request{checkpoint("run"), folder_.file("out"), {}};
  request.stack_experts = true;
  const std::string error = test::error_text<UsageError>([&] { export_checkpoint(request); });
  EXPECT_NE(error.find("has no stacked names of experts"), std::string::npos) << error;
}

class MixtureFromScratch : public Folder {};

TEST_F(MixtureFromScratch, WithWeighedInputsIsWrittenAsLlama4) {
  write_tokens();
  train(
      "model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4, num_kv_heads: 2, "
      "head_width: "
      "16, ffn_hidden_size: 44, vocab_size: 56, max_seq_length: 64, qk_norm: rotated, rope_layers: "
      "\"1110\", query_growth: 0.3, query_step: 4, init_std: 0.3}\n"
      "moe: {num_experts: 6, experts_per_token: 1, ffn_hidden_size: 20, shared_ffn_hidden_size: "
      "20, "
      "layers: \"01\", score: sigmoid, normalize_weights: false, weigh_input: true}\n"
      "data: {path: " +
          folder_.file("many.bin") +
          ", format: bin, validation_fraction: 0}\n"
          "training: {seq_length: 32, global_batch_size: 2, max_steps: 2}\n"
          "optimizer: {lr: 0.05}\ncheckpoint: {interval: 2}\n",
      "run", 1, 2);
  const std::string run = folder_.file("run/checkpoints/step-0000000002"), to = folder_.file("hf");
  export_checkpoint({run, to, {}});
  const json config = json::parse(folder_.read("hf/config.json"));
  EXPECT_EQ(config["model_type"], "llama4_text");
  EXPECT_EQ(config["moe_layers"], json({1, 3}));
  EXPECT_EQ(config["intermediate_size"], 20);
  EXPECT_EQ(config["intermediate_size_mlp"], 44);
  EXPECT_EQ(config["attention_chunk_size"], 64);
  const auto loss_of = [&](const std::string& model) {
    return evaluate_checkpoint({model,
                                {"data.validation_path=" + folder_.file("tokens.bin"),
                                 "data.format=bin", "training.seq_length=32"},
                                1,
                                {}})
        .loss;
  };
  EXPECT_EQ(loss_of(to), loss_of(run));
}

// Published shapes, and what they count in all and for one token.
struct Published {
  const char* config;
  std::int64_t all, active;
};
const Published kPublished[] = {
    {R"({"model_type":"mixtral","vocab_size":32000,"hidden_size":4096,"num_hidden_layers":32,
        "num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,
        "max_position_embeddings":32768})",
     46'702'792'704, 12'879'925'248},
    {R"({"model_type":"mixtral","vocab_size":32000,"hidden_size":6144,"num_hidden_layers":56,
        "num_attention_heads":48,"num_key_value_heads":8,"intermediate_size":16384,
        "max_position_embeddings":65536})",
     140'620'634'112, 39'152'031'744},
    {R"({"model_type":"qwen2_moe","vocab_size":151936,"hidden_size":2048,"num_hidden_layers":24,
        "num_attention_heads":16,"num_key_value_heads":16,"intermediate_size":5632,
        "max_position_embeddings":8192})",
     14'315'784'192, 2'689'173'504},
    {R"({"model_type":"qwen2_moe","vocab_size":151936,"hidden_size":3584,"num_hidden_layers":28,
        "num_attention_heads":28,"num_key_value_heads":4,"intermediate_size":18944,"num_experts":64,
        "num_experts_per_tok":8,"moe_intermediate_size":2560,
        "shared_expert_intermediate_size":20480,"max_position_embeddings":8192})",
     57'408'658'944, 14'249'270'784},
    {R"({"model_type":"qwen3_moe","vocab_size":151936,"hidden_size":2048,"num_hidden_layers":48,
        "num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"intermediate_size":6144,
        "norm_topk_prob":true,"max_position_embeddings":40960})",
     30'532'122'624, 3'353'032'704},
    {R"({"model_type":"qwen3_moe","vocab_size":151936,"hidden_size":4096,"num_hidden_layers":94,
        "num_attention_heads":64,"num_key_value_heads":4,"head_dim":128,"intermediate_size":12288,
        "moe_intermediate_size":1536,"max_position_embeddings":40960})",
     235'093'634'560, 22'190'763'520},
    {R"({"model_type":"olmoe","vocab_size":50304,"hidden_size":2048,"num_hidden_layers":16,
        "num_attention_heads":16,"num_key_value_heads":16,"intermediate_size":1024,
        "max_position_embeddings":4096})",
     6'919'161'856, 1'282'017'280},
    {R"({"model_type":"granitemoe","vocab_size":49155,"hidden_size":1024,"num_hidden_layers":24,
        "num_attention_heads":16,"num_key_value_heads":8,"intermediate_size":512,
        "num_local_experts":32,"num_experts_per_tok":8,"tie_word_embeddings":true,
        "max_position_embeddings":4096})",
     1'334'628'352, 428'658'688},
    {R"({"model_type":"granitemoe","vocab_size":49155,"hidden_size":1536,"num_hidden_layers":32,
        "num_attention_heads":24,"num_key_value_heads":8,"intermediate_size":512,
        "num_local_experts":40,"num_experts_per_tok":8,"tie_word_embeddings":true,
        "max_position_embeddings":4096})",
     3'298'793'472, 882'874'368},
    {R"({"model_type":"minimax_m2","vocab_size":200064,"hidden_size":3072,"num_hidden_layers":62,
        "num_attention_heads":48,"num_key_value_heads":8,"head_dim":128,"rotary_dim":64,
        "intermediate_size":1536,"max_position_embeddings":196608})",
     228'689'764'864, 11'030'553'088},
    {R"({"model_type":"deepseek_v2", "vocab_size":102400, "hidden_size":2048,
        "num_hidden_layers":27, "num_attention_heads":16, "intermediate_size":10944,
        "moe_intermediate_size":1408, "n_routed_experts":64, "num_experts_per_tok":6,
        "n_shared_experts":2, "first_k_dense_replace":1, "q_lora_rank":null,
        "kv_lora_rank":512, "max_position_embeddings":4096})",
     15'706'484'224, 2'661'150'208},
    {R"({"model_type":"deepseek_v2", "vocab_size":102400, "hidden_size":5120,
        "num_hidden_layers":60, "num_attention_heads":128, "intermediate_size":12288,
        "moe_intermediate_size":1536, "n_routed_experts":160, "num_experts_per_tok":6,
        "n_shared_experts":2, "first_k_dense_replace":1, "q_lora_rank":1536,
        "kv_lora_rank":512, "topk_method":"group_limited_greedy", "n_group":8,
        "topk_group":3, "routed_scaling_factor":16.0, "max_position_embeddings":4096})",
     235'741'434'880, 21'375'800'320},
    {R"({"model_type":"deepseek_v3", "vocab_size":129280, "hidden_size":7168,
        "num_hidden_layers":61, "num_attention_heads":128, "intermediate_size":18432,
        "max_position_embeddings":4096})",
     671'026'419'200, 37'552'297'472},
    {R"({"model_type":"kimi_k2", "vocab_size":163840, "hidden_size":7168,
        "num_hidden_layers":61, "num_attention_heads":64, "intermediate_size":18432,
        "n_routed_experts":384, "n_group":1, "topk_group":1, "first_k_dense_replace":1,
        "routed_scaling_factor":2.827, "max_position_embeddings":4096})",
     1'026'408'232'448, 32'861'500'928},
    {R"({"model_type":"deepseek_v3", "vocab_size":163840, "hidden_size":2048,
        "num_hidden_layers":27, "num_attention_heads":16, "intermediate_size":11264,
        "moe_intermediate_size":1408, "n_routed_experts":64, "num_experts_per_tok":6,
        "n_shared_experts":2, "first_k_dense_replace":1, "q_lora_rank":null, "n_group":1,
        "topk_group":1, "routed_scaling_factor":2.446, "max_position_embeddings":8192})",
     15'960'110'208, 2'914'776'192},
    {R"({"model_type":"glm4_moe", "vocab_size":151552, "hidden_size":5120,
        "num_hidden_layers":92, "num_attention_heads":96, "num_key_value_heads":8,
        "head_dim":128, "intermediate_size":12288, "moe_intermediate_size":1536,
        "n_routed_experts":160, "first_k_dense_replace":3, "attention_bias":true,
        "use_qk_norm":true, "routed_scaling_factor":2.5, "num_nextn_predict_layers":1,
        "max_position_embeddings":131072})",
     352'797'829'024, 33'632'266'144},
    {R"({"model_type":"glm4_moe", "vocab_size":151552, "hidden_size":4096,
        "num_hidden_layers":46, "num_attention_heads":96, "num_key_value_heads":8,
        "head_dim":128, "intermediate_size":10944, "attention_bias":true,
        "num_nextn_predict_layers":1, "max_position_embeddings":131072})",
     106'852'251'264, 13'424'129'664},
    {R"({"model_type":"ernie4_5_moe", "vocab_size":103424, "hidden_size":2560,
        "num_hidden_layers":28, "num_attention_heads":20, "num_key_value_heads":4,
        "head_dim":128, "intermediate_size":12288, "rope_theta":500000,
        "max_position_embeddings":131072})",
     21'825'437'888, 3'352'150'208},
    {R"({"model_type":"ernie4_5_moe", "vocab_size":103424, "hidden_size":8192,
        "num_hidden_layers":54, "num_attention_heads":64, "num_key_value_heads":8,
        "intermediate_size":28672, "moe_intermediate_size":3584, "moe_k":8,
        "moe_num_shared_experts":0, "moe_layer_start_index":3, "tie_word_embeddings":false,
        "rope_theta":500000, "max_position_embeddings":131072})",
     299'484'163'264, 47'926'586'560},
    {R"({"model_type":"hunyuan_v1_moe", "vocab_size":128167, "hidden_size":4096,
        "num_hidden_layers":32, "num_attention_heads":32, "num_key_value_heads":8,
        "head_dim":128, "intermediate_size":3072, "num_experts":64, "moe_topk":8,
        "tie_word_embeddings":true, "max_position_embeddings":32768})",
     80'393'183'232, 12'747'448'320},
    {R"({"model_type":"dots1", "vocab_size":152064, "hidden_size":4096,
        "num_hidden_layers":62, "num_attention_heads":32, "num_key_value_heads":32,
        "intermediate_size":10944, "n_routed_experts":128, "num_experts_per_tok":6,
        "n_shared_experts":2, "first_k_dense_replace":1, "norm_topk_prob":true,
        "routed_scaling_factor":2.5, "max_position_embeddings":32768})",
     142'774'381'696, 14'016'588'928},
    {R"({"model_type":"gpt_oss","vocab_size":201088,"hidden_size":2880,"num_hidden_layers":24,
        "num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"intermediate_size":2880,
        "num_local_experts":32,"num_experts_per_tok":4,"max_position_embeddings":131072})",
     20'914'757'184, 4'187'440'704},
    {R"({"model_type":"gpt_oss","vocab_size":201088,"hidden_size":2880,"num_hidden_layers":36,
        "num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"intermediate_size":2880,
        "num_local_experts":128,"num_experts_per_tok":4,"max_position_embeddings":131072})",
     116'829'156'672, 5'711'982'912},
    {R"({"model_type":"llama4_text","vocab_size":202048,"hidden_size":5120,"num_hidden_layers":48,
        "num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"intermediate_size":8192,
        "intermediate_size_mlp":16384,"num_local_experts":16,"num_experts_per_tok":1,
        "max_position_embeddings":10485760})",
     107'769'861'120, 17'172'894'720},
    {R"({"model_type":"llama4_text","vocab_size":202048,"hidden_size":5120,"num_hidden_layers":48,
        "num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"intermediate_size":8192,
        "intermediate_size_mlp":16384,"num_local_experts":128,"num_experts_per_tok":1,
        "interleave_moe_layer_step":2,"use_qk_norm":false,"max_position_embeddings":1048576})",
     400'711'848'960, 17'184'691'200},
    {R"({"model_type":"phimoe","vocab_size":32064,"hidden_size":4096,"num_hidden_layers":32,
        "num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":6400,
        "num_local_experts":16,"attention_bias":true,"lm_head_bias":true,
        "max_position_embeddings":131072})",
     41'873'153'344, 6'640'999'744},
};

TEST(ExpertCounts, AreThoseOfThePublishedModels) {
  test::TempFolder folder;
  for (const Published& one : kPublished) {
    folder.write("model/config.json", one.config);
    RecipeRequest request;
    request.path = "counts.yaml";
    request.text = "model: {from: " + folder.file("model") +
                   "}\ntraining: {seq_length: 16, micro_batch_size: 1, max_steps: 1}\n";
    request.reads_data = false;
    const model::ModelShape shape = training_options(resolve_recipe(request).values).model;
    EXPECT_EQ(model::num_parameters(shape), one.all) << one.config;
    EXPECT_EQ(model::num_active_parameters(shape), one.active) << one.config;
  }
}

}  // namespace
}  // namespace sherd::engine
