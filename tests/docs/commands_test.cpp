// The commands of README.md and docs/*.md, run as they are written there, in a folder that is not
// the source folder; what they print is compared in form. What takes long or needs packages or a GPU
// is only shown by ./dev (DEV_SHOW), and stands in the table below with the reason.
#include <gtest/gtest.h>

#include <set>

#include "engine/recipe/fields.h"
#include "tests/docs/page.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = SHERD_SOURCE_DIR;

enum class How {
  kRun,     ///< unchanged, followed by `extra`
  kShown,   ///< ./dev shows what it would do
  kRecipe,  ///< its recipe and --set are resolved (`sherd recipe` instead of `sherd train`)
};

struct Row {
  const char* command;
  How how;
  const char* reason;
  std::string extra{};
};

// Models and text that train 300 steps in two seconds.
const std::string kSmall =
    " --set model.num_layers=1 --set model.hidden_size=32 --set training.seq_length=32"
    " --set data.path=my/texts --set training.sample_tokens=8";
const std::string kOfTwoLayers =
    " --set model.num_layers=2 --set model.hidden_size=32 --set training.seq_length=32"
    " --set data.path=my/texts --set training.sample_tokens=8";

const std::vector<Row> kTable = {
    // README.md
    {"./dev train", How::kRun, "a small model, and stopped after 200 of 300 steps",
     kSmall + " --set lr_scheduler.decay_steps=300 --set training.max_steps=200"},
    {"./dev test", How::kShown, "this is one of its tests"},
    {"./dev train --ranks 4 --set zero_optimization.stage=2", How::kRun, "a small model", kSmall},
    {"./dev sherd inspect runs/quickstart", How::kRun, ""},
    {"./dev sherd verify runs/quickstart/checkpoints/step-0000000300 --deep", How::kRun, ""},
    {"./dev sherd eval runs/quickstart", How::kRun, ""},
    {"./dev sherd sample runs/quickstart --prompt \"template <\"", How::kRun, ""},
    {"./dev sherd export runs/quickstart --to weights.h5", How::kRun, ""},
    {"./dev train --set run.name=quickstart_bf16 --set mixed_precision.param_dtype=bf16 --set "
     "activation_checkpointing.mode=full",
     How::kRun, "a small model, 20 steps", kSmall + " --set training.max_steps=20"},
    {"./dev train mine.yaml --ranks 2 --set optimizer.lr=1e-3", How::kRun,
     "a small model, 20 steps",
     kSmall + " --set model.num_attention_heads=2 --set training.max_steps=20"},
    {"./dev sherd recipe mine.yaml", How::kRun, ""},
    {"./dev sherd recipe --help-fields", How::kRun, ""},
    {"./dev sherd info", How::kRun, ""},
    {"./dev sherd plan mine.yaml --ranks 8 --device-memory 80GiB", How::kRun, ""},
    {"./dev sherd plan recipes/gpt2_124m.yaml --device-memory 6GiB", How::kRun, ""},
    {"./dev sherd plan recipes/quickstart.yaml --ranks 4 --set moe.num_experts=8 --set "
     "parallelism.expert_parallel_degree=4",
     How::kRun, ""},
    {"./dev bench peers --models gpt2_124m --modes compile", How::kShown,
     "installs PyTorch, 1.4 GB, and takes minutes"},
    {"./dev build cuda", How::kShown, "needs the CUDA Toolkit"},
    {"build/cuda/sherd train recipes/shakespeare_char_h200.yaml --set data.path=input.txt",
     How::kRecipe, "needs a GPU"},
    {"./dev gpu-check", How::kShown, "needs a GPU"},
    {"./dev gpu-check --tune", How::kShown, "needs a GPU"},
    {"./dev sherd data recipes/sft_lora.yaml --set model.from=my_model", How::kShown,
     "needs a model; tests/engine/run has such runs"},
    {"./dev sherd plan recipes/sft_lora.yaml --set model.from=my_model", How::kShown,
     "needs a model"},
    {"./dev train recipes/sft_lora.yaml --set model.from=my_model --set training.seq_length=512",
     How::kShown, "needs a model"},
    {"./dev train recipes/sft_full.yaml --set model.from=my_model --set "
     "checkpoint.init_from=my_model",
     How::kShown, "needs a model"},
    {"./dev sherd report runs/quickstart --html report.html", How::kRun, ""},
    {"./dev sherd sweep recipes/quickstart.yaml --set optimizer.lr=1e-3,3e-4 --set "
     "run.output_dir=runs/rates",
     How::kRun, "a small model, 20 steps", kSmall + " --set training.max_steps=20"},
    {"./dev sherd chat runs/sft_lora", How::kShown, "needs the run above"},
    {"./dev sherd export runs/sft_lora --to-hf my_adapter", How::kShown, "needs the run above"},
    // docs/distributed.md
    {"./dev sherd launch -n 2 -- train recipes/quickstart.yaml", How::kRun,
     "a small model, 20 steps",
     kSmall + " --set training.max_steps=20 --set run.name=quickstart_launch"},
    {"mpirun --oversubscribe --bind-to none -n 2 build/cpu/sherd train recipes/quickstart.yaml",
     How::kRun, "a small model, 20 steps",
     kSmall + " --set training.max_steps=20 --set run.name=quickstart_mpirun"},
    {"./dev sherd launch -n 2 -- train recipes/quickstart.yaml --ranks 4", How::kRun,
     "a small model, 20 steps",
     kSmall + " --set training.max_steps=20 --set run.name=quickstart_4"},
    {"./dev sherd launch -n 4 -- train recipes/quickstart.yaml --set "
     "parallelism.data_parallel_replicate_degree=2",
     How::kRun, "a small model, 20 steps",
     kSmall + " --set training.max_steps=20 --set run.name=quickstart_hybrid"},
    {"./dev sherd launch -n 4 -- train recipes/quickstart.yaml --set "
     "parallelism.data_parallel_replicate_degree=2 --set "
     "zero_optimization.shard_optimizer_over_replicas=true",
     How::kRun, "a small model, 20 steps",
     kSmall + " --set training.max_steps=20 --set run.name=quickstart_divided"},
    {"./dev sherd plan recipes/quickstart.yaml --ranks 4 --ranks-per-machine 2", How::kRun, ""},
    {"./dev sherd plan recipes/quickstart.yaml --ranks 4 --set parallelism.parameter_servers=2 "
     "--set zero_optimization.stage=2 --device-memory 1GiB --server-memory 2GiB",
     How::kRun, ""},
    {"./dev bundle", How::kShown, "needs the CUDA Toolkit"},
    // docs/parquet.md
    {"./dev deps arrow", How::kShown, "downloads 55 MB"},
    {"./dev build", How::kShown, "compiles"},
    // docs/memory.md
    {"./dev sherd plan recipes/llama_7b_8xh200.yaml --device-memory 80GB --set "
     "model.num_layers=60 --set model.hidden_size=6656 --set model.num_attention_heads=52 --set "
     "model.num_kv_heads=52 --set model.ffn_hidden_size=17920",
     How::kRun, ""},
    // docs/parallelism.md
    {"./dev train --ranks 1 --set parallelism.tensor_parallel_degree=2", How::kRun,
     "a small model, 20 steps",
     kSmall + " --set training.max_steps=20 --set run.name=quickstart_tensor"},
    {"./dev train --ranks 1 --set parallelism.tensor_parallel_degree=2 --set "
     "parallelism.sequence_parallel=true",
     How::kRun, "a small model, 20 steps",
     kSmall + " --set training.max_steps=20 --set run.name=quickstart_sequence"},
    {"./dev train --ranks 1 --set parallelism.context_parallel_degree=2", How::kRun,
     "a small model, 20 steps",
     kSmall + " --set training.max_steps=20 --set run.name=quickstart_context"},
    {"./dev train --ranks 1 --set parallelism.pipeline_parallel_degree=2 --set "
     "training.gradient_accumulation_steps=4",
     How::kRun, "a small model of two layers, 20 steps",
     kOfTwoLayers + " --set training.max_steps=20 --set run.name=quickstart_pipeline"},
    {"./dev sherd schedule --pipeline 4 --micro-batches 8", How::kRun, ""},
    {"./dev sherd schedule --pipeline 4 --micro-batches 8 --schedule 1f1b", How::kRun, ""},
    {"./dev sherd schedule --pipeline 4 --micro-batches 8 --schedule zb_v", How::kRun, ""},
    {"./dev sherd schedule --pipeline 4 --micro-batches 8 --schedule zb_v --times 10,11,9 "
     "--message "
     "0.5 --trace zb_v.json",
     How::kRun, ""},
    {"./dev sherd schedule --pipeline 2 --micro-batches 2 --schedule 1f1b --lists", How::kRun, ""},
};

const Row* row_of(const std::string& command) {
  for (const Row& row : kTable) {
    if (command == row.command) return &row;
  }
  return nullptr;
}

// Figures differ from run to run and from machine to machine: with their units they become "#".
std::string form_of(const std::string& line) {
  static const std::regex figure(
      R"([0-9][0-9.,]*( ?(k|M|G|T|B|KiB|MiB|GiB|TiB|ms|s|m|h|%)(?![a-zA-Z]))*)");
  static const std::regex spaces(" +");
  const std::string form = std::regex_replace(line, figure, "#");
  return std::regex_replace(std::regex_replace(form, spaces, " "), std::regex("^ | $"), "");
}

/// Whether `line` is of the form that the page shows, "…" standing for anything.
bool has_form(const std::string& line, const std::string& shown) {
  static const std::regex special(R"([.^$|()\[\]{}*+?\\])");
  std::string pattern = std::regex_replace(form_of(shown), special, R"(\$&)");
  for (std::size_t at = 0; (at = pattern.find("…", at)) != std::string::npos; at += 2) {
    pattern.replace(at, std::string("…").size(), ".*");
  }
  return std::regex_match(form_of(line), std::regex(pattern));
}

class Pages : public testing::Test {
 protected:
  Pages() {
    // Some long, some shorter than a sequence.
    for (int file = 0; file < 12; ++file) {
      std::string text;
      for (int i = 0; std::ssize(text) < (file % 3 == 0 ? 20 : 3000); ++i) {
        text += "template <int N" + std::to_string(i * (file + 7) % 90) + "> struct Matrix;\n";
      }
      folder_.write("my/texts/" + std::to_string(file) + ".h", text);
    }
    fs::create_symlink(kRoot / "dev", folder_.file("dev"));
    fs::create_symlink(kRoot / "recipes", folder_.file("recipes"));
    fs::create_directories(folder_.file("build/cuda"));
    fs::create_symlink(SHERD_PROGRAM, folder_.file("build/cuda/sherd"));
    fs::create_directories(folder_.file("build/cpu"));
    fs::create_symlink(SHERD_PROGRAM, folder_.file("build/cpu/sherd"));
  }

  /// Runs `command` in the folder with a shell; its exit code. What it prints is in `output_`.
  int run(const std::string& command, const std::string& environment) {
    const std::string line = "cd '" + folder_.path() + "' && export " + environment +
                             " SHERD_PROGRAM='" SHERD_PROGRAM "' && " + command +
                             " >output.txt 2>&1 </dev/null";
    const int status = std::system(line.c_str());
    output_ = test::lines_of(folder_.file("output.txt"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  void run(const test::Fence& fence, const std::string& command) {
    SCOPED_TRACE(fence.where() + ": " + command);
    const Row* row = row_of(command);
    ASSERT_NE(row, nullptr) << "isn't in the table of this test: say how it is run";
    int status = 0;
    switch (row->how) {
      case How::kRun:
        status = run(command + row->extra,
                     "OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1");
        break;
      case How::kShown:
        status = run(command, "DEV_SHOW=1 CUDACXX=true");
        break;
      case How::kRecipe:
        status = run(std::regex_replace(command, std::regex(" train "), " recipe "), "LC_ALL=C");
        break;
    }
    EXPECT_EQ(status, 0) << folder_.read("output.txt");
  }

  void compare(const test::Fence& fence) {
    auto line = output_.begin();
    for (const std::string& shown : fence.lines) {
      if (shown.find_first_not_of(" …") == std::string::npos) continue;
      while (line != output_.end() && !has_form(*line, shown)) ++line;
      EXPECT_NE(line, output_.end())
          << fence.where() << ": no line of this form (in this order): " << shown
          << "\nThe command printed:\n"
          << folder_.read("output.txt");
      if (line == output_.end()) return;
    }
  }

  test::TempFolder folder_;
  std::vector<std::string> output_;
};

TEST(PagesForm, FiguresAndTheirUnitsMayDiffer) {
  EXPECT_TRUE(
      has_form("step 20/300  loss 3.1  812 tok/s  1.2 s", "step 10/300  loss 4.25 … 47 ms"));
  EXPECT_TRUE(has_form("a 21.5 k b", "a 3.08 M b"));
  EXPECT_FALSE(has_form("step 20/300  gain 3.1", "step 10/300  loss 4.25"));
  EXPECT_FALSE(has_form("a (b) c", "a b c"));
  EXPECT_FALSE(has_form("loss 3.1 more", "loss 3.1"));
}

TEST_F(Pages, EveryBlockSaysWhatItIs) {
  const std::set<std::string> known = {"console", "output", "synopsis", "yaml", "python",
                                       "cpp",     "cmake",  "sh",       "text"};
  for (const std::string& page : test::pages(kRoot)) {
    for (const test::Fence& fence : test::fences_of(kRoot, page)) {
      EXPECT_TRUE(known.contains(fence.language))
          << fence.where() << ": \"" << fence.language << "\" (tests/docs/page.h lists the kinds)";
    }
  }
}

TEST_F(Pages, EveryCommandRunsAndPrintsWhatThePageShows) {
  std::set<std::string> seen;
  for (const std::string& page : test::pages(kRoot)) {
    for (const test::Fence& fence : test::fences_of(kRoot, page)) {
      if (fence.language == "yaml") {
        std::string recipe;
        for (const std::string& line : fence.lines) recipe += line + "\n";
        folder_.write("mine.yaml", recipe);
      } else if (fence.language == "output") {
        compare(fence);
      } else if (fence.language == "console") {
        for (const std::string& command : test::commands_of(fence)) {
          run(fence, command);
          seen.insert(command);
        }
      }
    }
  }
  for (const Row& row : kTable) {
    EXPECT_TRUE(seen.contains(row.command)) << row.command << ": is on no page any more";
  }
}

TEST_F(Pages, EverySynopsisAgreesWithTheHelp) {
  const std::regex option("--[a-z][a-z-]*");
  for (const std::string& page : test::pages(kRoot)) {
    for (const test::Fence& fence : test::fences_of(kRoot, page)) {
      if (fence.language != "synopsis") continue;
      for (const std::string& usage : test::commands_of(fence)) {
        SCOPED_TRACE(fence.where() + ": " + usage);
        std::smatch words;
        const bool of_dev = usage.starts_with("./dev ");
        ASSERT_TRUE(
            std::regex_search(usage, words, std::regex("^(?:\\./dev|sherd)((?: [a-z-]+)+)")));
        const std::string name = words[1];
        ASSERT_EQ(run(of_dev ? "./dev help" : "'" SHERD_PROGRAM "'" + name + " --help", "LC_ALL=C"),
                  0);
        const std::string help = folder_.read("output.txt");
        EXPECT_TRUE(!of_dev || help.find("./dev" + name) != std::string::npos);
        for (std::sregex_iterator at(usage.begin(), usage.end(), option), end; at != end; ++at) {
          EXPECT_NE(help.find(at->str()), std::string::npos) << at->str();
        }
      }
    }
  }
}

TEST_F(Pages, KeysAndCommandsInTheTextExist) {
  std::set<std::string> keys;
  for (const engine::Field& field : engine::recipe_fields()) keys.insert(std::string(field.key));
  ASSERT_EQ(run("./dev help", "LC_ALL=C"), 0);
  const std::string dev_help = folder_.read("output.txt");
  ASSERT_EQ(run("'" SHERD_PROGRAM "' --help", "LC_ALL=C"), 0);
  const std::string sherd_help = folder_.read("output.txt");
  const std::regex key("--set ([a-z_]+\\.[a-z_]+)=");
  const std::regex dev("`\\./dev ([a-z-]+(?: (?:kernels|peers|checkpoint|memory|cuda|oracle))?)");
  const std::regex sherd("`sherd ([a-z-]+)");
  for (const std::string& page : test::pages(kRoot)) {
    const std::string text =
        std::regex_replace(test::prose_of(kRoot, page), std::regex("\\s+"), " ");
    for (std::sregex_iterator at(text.begin(), text.end(), key), end; at != end; ++at) {
      if ((*at)[1] == "block.key") continue;
      EXPECT_TRUE(keys.contains((*at)[1])) << page << ": " << at->str();
    }
    for (std::sregex_iterator at(text.begin(), text.end(), dev), end; at != end; ++at) {
      const std::string name =
          std::regex_replace((*at)[1].str(), std::regex("^(deps|build) .*"), "$1");
      EXPECT_NE(dev_help.find("./dev " + name), std::string::npos) << page << ": " << at->str();
    }
    for (std::sregex_iterator at(text.begin(), text.end(), sherd), end; at != end; ++at) {
      EXPECT_NE(sherd_help.find("\n  " + (*at)[1].str()), std::string::npos)
          << page << ": " << at->str();
    }
  }
}

}  // namespace
}  // namespace sherd
