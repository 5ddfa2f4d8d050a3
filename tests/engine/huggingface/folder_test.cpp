// Whole folders: what `transformers` has saved is read and computed with as it was.
#include <cstring>
#include <limits>
#include <thread>

#include "engine/launch/machine.h"
#include "tests/engine/huggingface/folder_support.h"
#include "tests/support/models/generated_text.h"

namespace sherd::engine {
namespace {

TEST_F(Folder, HasTheLossThatTransformersComputes) {
  write_tokens();
  for (const auto& [name, one] : cases().items()) {
    const std::string model = write_model(name);
    for (const int stage : {0, 3}) {
      const EvaluationResult result = evaluate_checkpoint(
          {model,
           {"data.format=bin", "data.validation_path=" + folder_.file("tokens.bin"),
            fmt::format("training.seq_length={}", kTokens - 1),
            fmt::format("zero_optimization.stage={}", stage)},
           stage == 0 ? 1 : 2,
           {}});
      EXPECT_EQ(result.num_tokens, kTokens - 1);
      EXPECT_NEAR(result.loss, one["loss"].get<double>(), 2e-6) << name << " " << stage;
    }
  }
}

TEST_F(Folder, IsNotNeededAnyMoreOnceTheRunHasBegun) {
  write_tokens();
  const std::string model = write_model("llama");
  train(recipe(model), "run", 1, 2);
  fs::remove_all(model);
  train(recipe(model), "run", 1, 2, {"training.max_steps=2"});
  const std::string newest = folder_.file("run/checkpoints/step-0000000002");
  EXPECT_TRUE(fs::exists(newest));
  export_checkpoint({newest, folder_.file("out"), {}});
  EXPECT_TRUE(fs::exists(folder_.file("out/tokenizer_config.json")));
  EXPECT_FALSE(test::generated_text({newest, {}, 1, {}}, "1 2 3", {.num_tokens = 3}).empty());
  // Another run can't begin with it.
  EXPECT_EQ(test::error_text<RecipeErrors>([&] { train(recipe(model), "other", 1, 1); }),
            "folder.yaml:1: model.from is " + model + ", and there is no such folder.");
}

TEST_F(Folder, KeysNextToItMustAgree) {
  write_tokens();
  const std::string model = write_model("llama");
  const auto resolve = [&](const std::string& more) {
    RecipeRequest request;
    request.path = "r.yaml";
    request.text = "model:\n  from: " + model + "\n" + more +
                   "training: {seq_length: 16, micro_batch_size: 1, max_steps: 1}\n";
    request.reads_data = false;
    return resolve_recipe(request);
  };
  const ResolvedRecipe resolved =
      resolve("  hidden_size: 32\n  dropout: 0.5\n  max_seq_length: 20\n");
  EXPECT_EQ(resolved.values.model.num_kv_heads, 2);
  EXPECT_EQ(resolved.values.model.dropout, 0.5);
  EXPECT_EQ(resolved.values.model.max_seq_length, 20);
  EXPECT_EQ(resolved.origin("model.num_layers").text, model + "/config.json");
  EXPECT_EQ(test::error_text<RecipeErrors>([&] { resolve("  num_layers: 3\n  bias: true\n"); }),
            "r.yaml:3: model.num_layers is 3, but the model of " + model +
                " has 2. Leave it out.\nr.yaml:4: model.bias is true, but the model of " + model +
                " has false. Leave it out.");
  // What is printed is itself a recipe.
  RecipeRequest again;
  again.path = "printed.yaml";
  again.text = resolved.yaml();
  again.reads_data = false;
  EXPECT_EQ(resolve_recipe(again).values.model.num_kv_heads, 2);
}

TEST_F(Folder, ContextsBeyondWhatIsComputedAreRefused) {
  write_tokens();
  const std::string model = write_model("ministral3");
  const auto positions = [&](const std::string& more) {
    RecipeRequest request;
    request.path = "r.yaml";
    request.text = "model:\n  from: " + model + "\n" + more +
                   "training: {seq_length: 16, micro_batch_size: 1, max_steps: 1}\n";
    request.reads_data = false;
    return resolve_recipe(request).values.model.max_seq_length;
  };
  EXPECT_EQ(positions(""), 64);
  EXPECT_EQ(positions("  max_seq_length: 60\n"), 60);
  const std::string refusal =
      test::error_text<RecipeErrors>([&] { positions("  max_seq_length: 65\n"); });
  EXPECT_EQ(refusal.find("r.yaml:3: model.max_seq_length is 65, but up to 64 positions"), 0u)
      << refusal;
}

TEST_F(Folder, ThatDoesntFitIsAnErrorBeforeAnythingIsWritten) {
  write_tokens();
  const std::string model = write_model("llama");
  const std::string good = folder_.read("llama/model.safetensors");
  const auto refusal = [&](const std::string& bytes) {
    folder_.write("llama/model.safetensors", bytes);
    const std::string text =
        test::error_text<DataError>([&] { train(recipe(model), "run", 3, 2); });
    EXPECT_FALSE(fs::exists(folder_.file("run"))) << text;
    return text;
  };
  EXPECT_NE(refusal(replaced(good, "model.norm.weight", "model.gnorm.weight")), "(no error)");
  const std::string renamed = replaced(good, "layers.1.mlp.down_proj", "layers.1.mlp.dawn_proj");
  EXPECT_NE(refusal(renamed).find("lacks tensor \"model.layers.1.mlp.down_proj.weight\" [32, 48]"),
            std::string::npos);
  const std::string turned = replaced(good, "[32,48]", "[48,32]");
  EXPECT_NE(refusal(turned).find("is [48, 32]; the model's is [32, 48]"), std::string::npos);
  EXPECT_NE(refusal(replaced(good, "\"F32\"", "\"I32\"")).find("is of type I32"),
            std::string::npos);
  EXPECT_NE(refusal(good.substr(0, good.size() - 1)).find("was its download cut off?"),
            std::string::npos);
  folder_.write("llama/model.safetensors", good);
  train(recipe(model), "run", 3, 2);
}

// Found by the rank that reads it, when the run's folder has been made.
TEST_F(Folder, AValueThatIsntFiniteIsSaidByItsNameAndLeavesNothingBehind) {
  write_tokens();
  const std::string model = write_model("llama");
  const std::string good = folder_.read("llama/model.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string lora = "adapter: {type: lora, rank: 2}\n";
  const std::string qlora = "adapter: {type: lora, rank: 2, base_dtype: nf4}\n";
  for (const std::string& more : {std::string(), lora, qlora}) {
    for (const int stage : {0, 3}) {
      for (const std::size_t in_front_of_end : {std::size_t{4}, good.size() / 2 / 4 * 4}) {
        std::string bad = good;
        std::memcpy(bad.data() + bad.size() - in_front_of_end, &nan, sizeof nan);
        folder_.write("llama/model.safetensors", bad);
        ::testing::internal::CaptureStdout();
        const std::string text =
            test::error_text<DataError>([&] { train(recipe(model, more), "run", stage, 3); });
        const std::string said = ::testing::internal::GetCapturedStdout();
        EXPECT_EQ(said.find("with the weights of"), std::string::npos) << said;
        EXPECT_TRUE(text.starts_with(model + "/model.safetensors: element ")) << text;
        EXPECT_TRUE(text.ends_with(" is nan; weights must be finite")) << text;
        EXPECT_FALSE(fs::exists(folder_.file("run"))) << text;
      }
    }
  }
  folder_.write("mine/notes.txt", "kept");
  EXPECT_NE(test::error_text<DataError>([&] { train(recipe(model), "mine", 3, 2); }), "(no error)");
  EXPECT_EQ(folder_.read("mine/notes.txt"), "kept");
}

TEST_F(Folder, NamesTensorsThatAreTooManyAndLeavesOutBuffers) {
  const std::string model = write_model("llama");
  const std::string good = folder_.read("llama/model.safetensors");
  const auto add = [&](const std::string& name) {
    const std::size_t length =
        static_cast<unsigned char>(good[0]) + 256u * static_cast<unsigned char>(good[1]);
    std::string header = good.substr(8, length);
    header = header.substr(0, header.rfind('}')) + ",\"" + name +
             "\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    folder_.write("llama/model.safetensors",
                  bytes_of_length(header.size()) + header + good.substr(8 + length));
    RecipeRequest request;
    request.path = "r.yaml";
    request.text = recipe(model);
    const TrainingOptions options = training_options(resolve_recipe(request).values);
    return test::error_text<DataError>(
        [&] { open_folder_weights(checkpoint::posix_disk(), model, options); });
  };
  write_tokens();
  EXPECT_EQ(add("model.layers.1.self_attn.rotary_emb.inv_freq"), "(no error)");
  EXPECT_NE(add("model.layers.2.mlp.down_proj.weight")
                .find("holds \"model.layers.2.mlp.down_proj.weight\", which the model lacks"),
            std::string::npos);
}

TEST_F(Folder, ARankReadsTheBytesThatItOwnsAndTheHeaders) {
  write_tokens();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string model = write_model("gpt2", dtype);
    RecipeRequest request;
    request.path = "r.yaml";
    request.text = recipe(model);
    const TrainingOptions options = training_options(resolve_recipe(request).values);
    const huggingface::ModelWeights weights = model_weights(options);
    const auto header_bytes =
        checkpoint::read_safetensors_header(checkpoint::posix_disk(), model + "/model.safetensors")
            .header_bytes;
    std::int64_t all = 0;
    for (const int part : {0, 1, 2}) {  // of every tensor a third, cut anywhere
      sharding::State wanted;
      std::vector<std::vector<float>> memory;
      std::int64_t owned = 0;
      for (const auto& parameter : weights.parameters) {
        const std::int64_t numel = parameter.numel();
        const std::int64_t first = numel * part / 3, end = numel * (part + 1) / 3;
        memory.emplace_back(static_cast<std::size_t>(end - first));
        wanted.tensors.push_back({parameter.name, "param", parameter.shape, DType::kF32});
        wanted.pieces.push_back({static_cast<int>(wanted.tensors.size()) - 1,
                                 first,
                                 end - first,
                                 {memory.back().data(), DType::kF32, end - first}});
        owned += end - first;
      }
      std::int64_t read = 0;
      test::HookedDisk disk({}, [&](const test::DiskCall& call, std::int64_t result) {
        if (call.name == "pread" && call.path.ends_with(".safetensors")) read += result;
      });
      const huggingface::FolderWeights folder(disk, model, weights);
      EXPECT_EQ(read, header_bytes);
      std::vector<char> buffer(4 << 20);
      folder.load(wanted, {buffer.data(), DType::kU8, std::ssize(buffer)});
      EXPECT_EQ(read - header_bytes, owned * static_cast<std::int64_t>(size_of(dtype)));
      all += read - header_bytes;
    }
    EXPECT_EQ(all + header_bytes,
              static_cast<std::int64_t>(fs::file_size(model + "/model.safetensors")));
  }
}

TEST_F(Folder, InARunEachRankReadsWhatItUpdatesAtEveryStageAndWorld) {
  write_tokens();
  for (const std::string name : {"gpt2", "llama"}) {
    const std::string model = write_model(name), file = model + "/model.safetensors";
    const std::int64_t header =
        checkpoint::read_safetensors_header(checkpoint::posix_disk(), file).header_bytes;
    const auto data = static_cast<std::int64_t>(fs::file_size(file)) - header;
    for (int i = 0; i < 16; ++i) {
      const int stage = i / 4, ranks = i % 4 + 1;
      std::map<std::thread::id, std::int64_t> read;
      std::int64_t of_headers = 0;
      test::HookedDisk disk({}, [&](const test::DiskCall& call, std::int64_t bytes) {
        if (call.name != "pread" || call.path != file) return;
        (call.offset < header ? of_headers : read[std::this_thread::get_id()]) += bytes;
      });
      RecipeRequest request;
      request.path = "folder.yaml";
      request.text = recipe(model);
      request.ranks = ranks;
      request.sets = {"run.output_dir=" + folder_.file(fmt::format("{}-{}", name, i)),
                      fmt::format("zero_optimization.stage={}", stage)};
      const ResolvedRecipe resolved = resolve_recipe(request);
      engine::train(resolved, cpu_machine(), disk);
      const std::string label = fmt::format("{} stage {} ranks {}", name, stage, ranks);
      ASSERT_EQ(std::ssize(read), ranks) << label;
      EXPECT_EQ(of_headers, (ranks + 1) * header) << label << ": each rank's, and one check before";
      std::int64_t all = 0, most = 0;
      for (const auto& [thread, bytes] : read) {
        all += bytes;
        most = std::max(most, bytes);
      }
      EXPECT_EQ(all, stage == 0 ? ranks * data : data) << label;
      // A unit is cut into slices of whole 64 bytes or so; two layers and the remaining tensors are few units.
      EXPECT_LE(most, stage == 0 ? data : data / ranks + 8 * 256) << label;
    }
  }
}

TEST_F(Folder, GivesABandOfColumnsWhatTheWholeTensorHasThere) {
  write_tokens();
  const std::string model = write_model("gpt2");  // which stores matrices transposed
  RecipeRequest request;
  request.path = "r.yaml";
  request.text = recipe(model);
  const auto weights = model_weights(training_options(resolve_recipe(request).values));
  const huggingface::FolderWeights folder(checkpoint::posix_disk(), model, weights);
  std::vector<char> buffer(4 << 20);
  const Tensor memory{buffer.data(), DType::kU8, std::ssize(buffer)};
  for (const auto& parameter : weights.parameters) {
    if (parameter.shape.size() != 2) continue;
    const std::int64_t rows = parameter.shape[0], columns = parameter.shape[1];
    const sharding::Band band{columns / 3, columns / 2};
    std::vector<float> all(static_cast<std::size_t>(rows * columns)), some, expected;
    some.resize(static_cast<std::size_t>(rows * band.columns - 5));
    const auto load = [&](std::vector<float>& values, std::int64_t first,
                          const sharding::Band& of) {
      sharding::State wanted;
      wanted.tensors.push_back({parameter.name, "param", parameter.shape, DType::kF32});
      const Tensor data{values.data(), DType::kF32, std::ssize(values)};
      wanted.pieces.push_back({0, first, std::ssize(values), data, of});
      folder.load(wanted, memory);
    };
    load(all, 0, {});
    load(some, 3, band);  // from inside the first row into the last one
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto begin = all.begin() + row * columns + band.first;
      expected.insert(expected.end(), begin, begin + band.columns);
    }
    EXPECT_EQ(some, std::vector<float>(expected.begin() + 3, expected.end() - 2)) << parameter.name;
  }
}

TEST_F(Folder, ATiedHeadThatIsStoredMustBeTheEmbedding) {
  write_tokens();
  const std::string model = write_model("llama_tied");
  const std::string good = folder_.read("llama_tied/model.safetensors");
  const json header = json::parse(std::string(cases()["llama_tied"]["header"]));
  const auto& embedding = header["model.embed_tokens.weight"];
  const std::int64_t begin = embedding["data_offsets"][0], end = embedding["data_offsets"][1];
  const std::size_t data = good.size() - [&] {
    std::size_t total = 0;
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") total = std::max<std::size_t>(total, entry["data_offsets"][1]);
    }
    return total;
  }();
  std::string text = good.substr(8, data - 8);
  text =
      text.substr(0, text.rfind('}')) +
      fmt::format(R"(,"lm_head.weight":{{"dtype":"F32","shape":[56,32],"data_offsets":[{},{}]}}}})",
                  good.size() - data, good.size() - data + static_cast<std::size_t>(end - begin));
  std::string with_head =
      bytes_of_length(text.size()) + text + good.substr(data) +
      good.substr(data + static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  folder_.write("llama_tied/model.safetensors", with_head);
  train(recipe(model), "run", 3, 2);
  with_head.back() ^= 1;
  folder_.write("llama_tied/model.safetensors", with_head);
  EXPECT_NE(test::error_text<DataError>([&] {
              train(recipe(model), "other", 3, 2);
            }).find("holds the head lm_head.weight with other values than the embedding's"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(folder_.file("other")));
}

// A checkpoint that retention has claimed for removal can't be opened for reading.
TEST_F(Folder, ACheckpointAsFirstWeightsIsHeldWhileItIsRead) {
  write_tokens();
  const std::string model = write_model("llama");
  train(recipe(model), "base", 3, 2);
  const std::string base = checkpoint("base");
  const auto error_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"checkpoint.init_from=" + base};
    sets.insert(sets.end(), more.begin(), more.end());
    return test::error_text<DataError>([&] { train(recipe(model), "run", 3, 2, sets); });
  };
  std::optional<checkpoint::Checkpoint> remover(std::in_place, checkpoint::posix_disk(), base);
  ASSERT_TRUE(remover->claim());
  const std::string removed =
      base + ": its run removed it (checkpoint.keep_last) before it could be read; choose another.";
  EXPECT_EQ(error_of({}), removed);
  EXPECT_EQ(error_of({"adapter.type=lora", "adapter.rank=2"}), removed);
  remover.reset();
  EXPECT_EQ(error_of({}), "(no error)");
}

TEST_F(Folder, ACheckpointAsFirstWeightsIsRefusedInTheWordsOfTheRankThatFoundTheDamage) {
  write_tokens();
  const std::string model = write_model("llama");
  train(recipe(model), "base", 3, 3);
  const std::string name = "base/checkpoints/step-0000000001/shard-00002-of-00003.h5";
  std::string bytes = folder_.read(name);
  bytes[bytes.size() / 2] ^= 1;
  folder_.write(name, bytes);
  const std::string text = test::error_text<DataError>(
      [&] { train(recipe(model), "run", 3, 3, {"checkpoint.init_from=" + checkpoint("base")}); });
  EXPECT_TRUE(text.starts_with(folder_.file(name) + ": bytes [")) << text;
  EXPECT_NE(text.find(" are damaged: their checksum is "), std::string::npos) << text;
  EXPECT_FALSE(fs::exists(folder_.file("run")));
}

}  // namespace
}  // namespace sherd::engine
