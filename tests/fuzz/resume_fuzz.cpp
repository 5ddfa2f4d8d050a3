// A checkpoint that lies, its checksums right: the manifest edited, or a value of the state
// replaced. Resume, eval, sample and verify refuse it or take what it says.
#include <xxhash.h>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/verify.h"
#include "engine/inference/evaluate.h"
#include "engine/run/run.h"
#include "tests/checkpoint/support/manifest_editor.h"
#include "tests/fuzz/json_edits.h"
#include "tests/support/models/generated_text.h"

namespace sherd::fuzz {
namespace {

namespace fs = std::filesystem;
using checkpoint::posix_disk;

constexpr int kTraining = 5;  // a NaN among the weights ends a run with this

std::shared_ptr<const engine::Machine> processor() {
  return engine::cpu_machine();
}

engine::ResolvedRecipe recipe(const std::string& output, const std::string& more) {
  return engine::resolve_recipe(
      {.path = "fuzz.yaml",
       .text = fmt::format(
           "run: {{output_dir: {0}/{1}, device: cpu, num_threads: 1}}\n"
           "model: {{num_layers: 1, hidden_size: 8, num_attention_heads: 2, vocab_size: 128}}\n"
           "data: {{path: {0}/text.txt}}\n"
           "training: {{seq_length: 8, global_batch_size: 2, micro_batch_size: 1, max_steps: 3}}\n"
           "parallelism: {{data_parallel_shard_degree: 2}}\n"
           "zero_optimization: {{stage: 3}}\n"
           "checkpoint: {{{2}}}\n",
           folder().path(), output, more)});
}

// Step 1 of 3, saved by two ranks, and every part of it that an input may change.
class Victim {
 public:
  Victim() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += static_cast<char>('a' + i * i % 26);
    folder().write("text.txt", text);
    engine::train(recipe("honest", "interval: 1, keep_every: 1"), processor());
    const std::string name = "checkpoints/" + checkpoint::step_directory_name(1);
    path_ = folder().file("hostile/" + name);
    fs::create_directories(fs::path(path_).parent_path());
    fs::copy(folder().file("honest/" + name), path_, fs::copy_options::recursive);
    manifest_ = checkpoint::Checkpoint(posix_disk(), path_).manifest();
    for (int shard = 0; shard < 2; ++shard) shards_.push_back(read(shard_path(shard)));
  }

  const std::string& path() const { return path_; }

  void change(Bytes bytes) {
    checkpoint::Manifest manifest = manifest_;
    std::vector<std::string> shards = shards_;
    if (bytes.byte() % 2 == 1) replace_value(manifest, shards, bytes);
    Json json = test::unframed(checkpoint::manifest_to_json(manifest));
    JsonEdits(json, bytes).apply(4);
    write(path_ + "/manifest.json", test::framed(json));
    for (int shard = 0; shard < 2; ++shard) write(shard_path(shard), shards[shard]);
  }

 private:
  static std::string read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  }
  std::string shard_path(int shard) const { return path_ + "/" + checkpoint::shard_name(shard, 2); }

  // All datasets are smaller than a block, so each has one checksum.
  static void replace_value(checkpoint::Manifest& manifest, std::vector<std::string>& shards,
                            Bytes& bytes) {
    const std::size_t shard = bytes.below(2);
    auto& datasets = manifest.shards[shard].datasets;
    checkpoint::ShardDataset& dataset = datasets[bytes.below(datasets.size())];
    const auto begin = static_cast<std::size_t>(dataset.offset);
    const std::size_t element = bytes.below(static_cast<std::size_t>(dataset.numel));
    for (std::size_t i = 0; i < size_of(dataset.dtype); ++i) {
      shards[shard][begin + element * size_of(dataset.dtype) + i] = static_cast<char>(bytes.byte());
    }
    dataset.checksums = {
        XXH3_64bits(shards[shard].data() + begin, static_cast<std::size_t>(dataset.bytes()))};
  }

  std::string path_;
  checkpoint::Manifest manifest_;
  std::vector<std::string> shards_;
};

void use(Bytes bytes) {
  static Victim victim;
  victim.change(bytes);
  expect_answer(
      [] { checkpoint::verify(posix_disk(), victim.path(), checkpoint::VerifyDepth::kDeep); });
  fs::remove_all(folder().file("again"));
  expect_answer(
      [] { engine::train(recipe("again", "interval: 0, resume: " + victim.path()), processor()); },
      kTraining);
  const engine::TrainedModelRequest request{
      .checkpoint = victim.path(), .ranks = {}, .machine = processor()};
  expect_answer([&] { engine::evaluate_checkpoint(request); }, kTraining);
  expect_answer([&] { test::generated_text(request, "a", {.num_tokens = 2}); }, kTraining);
}

}  // namespace
}  // namespace sherd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sherd::fuzz::silence_stdout();
  sherd::fuzz::use({data, size});
  return 0;
}
