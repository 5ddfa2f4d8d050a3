// Models that no folder began with, exported: every row of docs/models.md's table. What `transformers` makes of the same
// cases: tests/reference/huggingface/scratch.py.

#include <set>

#include "engine/recipe/written_family.h"
#include "tests/engine/huggingface/folder_support.h"

namespace sherd::engine {
namespace {

const json& scratch_cases() {
  static const json kCases = [] {
    std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/engine/huggingface/scratch.json");
    return json::parse(file);
  }();
  return kCases;
}

std::vector<std::string> names_of_scratch_cases() {
  std::vector<std::string> names;
  for (const json& one : scratch_cases()) names.push_back(one["name"]);
  return names;
}

const json& case_of(const std::string& name) {
  for (const json& one : scratch_cases()) {
    if (one["name"] == name) return one;
  }
  throw std::runtime_error(name);
}

// The first cells of the table below "## Families".
std::set<std::string> rows_of_page() {
  std::ifstream page(std::string(SHERD_SOURCE_DIR) + "/docs/models.md");
  std::set<std::string> rows;
  bool is_table = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) is_table = line == "## Families";
    if (!is_table || !line.starts_with("| ") || line.starts_with("| family")) continue;
    rows.insert(line.substr(2, line.find(" |", 2) - 2));
  }
  return rows;
}

TEST(Scratch, HasACaseForEveryRowOfThePage) {
  std::set<std::string> rows;
  for (const json& one : scratch_cases()) rows.insert(one["row"]);
  EXPECT_EQ(rows, rows_of_page());
  EXPECT_GE(rows.size(), 18u);
}

class FromScratch : public Folder, public ::testing::WithParamInterface<std::string> {
 protected:
  std::string scratch_recipe(const std::string& model_keys) const {
    return "model: " + model_keys + "\ndata: {path: " + folder_.file("many.bin") +
           ", format: bin, validation_fraction: 0}\n"
           "training: {seq_length: 32, global_batch_size: 2, max_steps: 2}\n"
           "optimizer: {lr: 0.05}\ncheckpoint: {interval: 2}\n";
  }
  static std::string keys_of(const json& one) {
    json model = {{"num_layers", 4},   {"hidden_size", 64}, {"num_attention_heads", 4},
                  {"num_kv_heads", 2}, {"vocab_size", 56},  {"max_seq_length", 64},
                  {"init_std", 0.3}};
    model.update(one["model"]);
    return model.dump();
  }
  double loss_of(const std::string& model) const {
    return evaluate_checkpoint({model,
                                {"data.validation_path=" + folder_.file("tokens.bin"),
                                 "data.format=bin", "training.seq_length=32"},
                                1,
                                {}})
        .loss;
  }
};
INSTANTIATE_TEST_SUITE_P(Cases, FromScratch, ::testing::ValuesIn(names_of_scratch_cases()),
                         [](const auto& info) { return info.param; });

TEST_P(FromScratch, IsWrittenAsTheFamilyThatMeansTheSame) {
  const json& one = case_of(GetParam());
  write_tokens();
  train(scratch_recipe(keys_of(one)), "run", 1, 2);
  const std::string run = folder_.file("run/checkpoints/step-0000000002"), to = folder_.file("hf");
  export_checkpoint({run, to, {}});
  const json config = json::parse(folder_.read("hf/config.json"));
  EXPECT_EQ(config["model_type"], one["type"]);
  for (const char* token : {"pad_token_id", "bos_token_id", "eos_token_id"}) {
    EXPECT_TRUE(config.contains(token)) << token;  // or the class's own number counts
  }
  if (one["type"] == "gpt2") {
    EXPECT_EQ(config["n_ctx"], 64);  // llama.cpp's converter reads this one
  }
  EXPECT_EQ(loss_of(to), loss_of(run));
}

class Unwritable : public Folder {};

TEST_F(Unwritable, AModelWithoutAFamilySaysSoWhenItsRunBegins) {
  RecipeRequest request;
  request.path = "odd.yaml";
  request.text =
      "model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, vocab_size: 56, "
      "norm_placement: sandwich, block: sequential, activation: relu2}\n"
      "training: {seq_length: 16, global_batch_size: 2, max_steps: 1}\n";
  request.reads_data = false;
  const std::string note = export_note(resolve_recipe(request).values);
  EXPECT_NE(note.find("won't write this model"), std::string::npos) << note;
  EXPECT_NE(note.find("model."), std::string::npos) << note;
  request.sets = {"model.activation=swiglu", "model.norm_placement=pre"};
  EXPECT_EQ(export_note(resolve_recipe(request).values), "");
}

// Sherd multiplies cosines and sines by it; transformers reads it with yarn alone.
TEST_F(Unwritable, AFactorOnCosinesThatItsScalingDoesntHaveThereIsntWritten) {
  RecipeRequest request;
  request.path = "odd.yaml";
  request.text =
      "model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, vocab_size: 56, "
      "rope_factor: 2, rope_original_length: 8}\n"
      "training: {seq_length: 16, global_batch_size: 2, max_steps: 1}\n";
  request.reads_data = false;
  for (const std::string scaling : {"linear", "llama3", "yarn"}) {
    for (const std::string factor : {"0", "1", "3"}) {
      request.sets = {"model.rope_scaling=" + scaling, "model.rope_attention_factor=" + factor};
      const bool is_written = scaling == "yarn" || factor != "3";
      const std::string note = export_note(resolve_recipe(request).values);
      EXPECT_EQ(note.empty(), is_written) << scaling << factor << note;
    }
  }
}

}  // namespace
}  // namespace sherd::engine
