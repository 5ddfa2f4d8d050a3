// Who may include whom: the table of docs/architecture.md, compared with every #include.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/where.h"

namespace {

namespace fs = std::filesystem;

struct Include {
  std::string file;  ///< relative to the source folder
  int line = 0;
  std::string target;
  bool quoted = false;

  std::string where() const { return file + ":" + std::to_string(line); }
};

struct Layer {
  std::string folder;
  std::set<std::string> may_include;  ///< besides itself
};

// Rooms from the bottom to the top. The longest matching folder decides, so kernels/cpu is not simply
// kernels.
const std::vector<Layer> kLayers = {
    {"core", {}},
    {"kernels",
     {"core", "kernels/cpu", "kernels/cpu/attention", "kernels/cpu/matmul", "kernels/cpu/norm",
      "kernels/cuda", "kernels/device_common", "kernels/launches"}},
    {"kernels/dispatch",
     {"core", "kernels", "kernels/cpu", "kernels/cpu/attention", "kernels/cpu/matmul",
      "kernels/cpu/norm", "kernels/cuda", "kernels/device_common", "kernels/launches"}},
    {"kernels/launches", {"core", "kernels", "kernels/cuda", "kernels/device_common"}},
    {"kernels/cpu/matmul", {"core", "kernels", "kernels/cpu"}},
    {"kernels/cpu/attention", {"core", "kernels", "kernels/cpu", "kernels/cpu/matmul"}},
    {"kernels/cpu/norm", {"core", "kernels", "kernels/cpu"}},
    {"kernels/cpu", {"core", "kernels", "kernels/cpu/matmul", "kernels/cpu/norm"}},
    {"kernels/cuda", {"core", "kernels", "kernels/device_common"}},
    {"kernels/device_common", {"core", "kernels"}},
    {"sharding/comm", {"core", "kernels", "kernels/cuda"}},
    {"sharding/processes", {"core", "kernels", "sharding/comm"}},
    {"sharding/mesh", {"core", "sharding/comm"}},
    {"sharding/state", {"core"}},
    {"sharding/zero", {"core", "kernels", "sharding/comm", "sharding/mesh"}},
    {"optim", {"core", "kernels", "sharding/comm", "sharding/mesh", "sharding/zero"}},
    {"checkpoint/format", {"core", "sharding/state"}},
    {"checkpoint/store", {"core", "sharding/state", "checkpoint/format"}},
    {"checkpoint/interchange", {"core", "checkpoint/format", "checkpoint/store"}},
    {"checkpoint", {"core", "sharding/state", "checkpoint/format", "checkpoint/store"}},
    {"engine/schedule", {"core"}},
    {"engine/offload", {"core", "checkpoint/store", "sharding/mesh"}},
    {"engine/model", {"core", "kernels"}},
    {"engine/preference", {"core"}},
    {"engine/data/tokenizer", {"core", "engine/data"}},
    {"engine/data/arrow", {"core", "engine/data"}},
    {"engine/data/arrow/module", {"engine/data/arrow"}},
    {"engine/data/files", {"core", "engine/data", "engine/data/arrow", "engine/data/tokenizer"}},
    {"engine/data/template", {"core", "engine/data"}},
    {"engine/data/chat",
     {"core", "engine/data/files", "engine/data/template", "engine/data/tokenize",
      "engine/data/tokenizer"}},
    {"engine/data",
     {"core", "engine/data/arrow", "engine/data/chat", "engine/data/files",
      "engine/data/tokenizer"}},
    {"engine/data/tokenize", {"core", "engine/data", "engine/data/files", "engine/data/tokenizer"}},
    {"engine/huggingface",
     {"core", "sharding/state", "checkpoint/format", "checkpoint/store", "checkpoint/interchange"}},
    {"engine/report", {"core", "checkpoint/store"}},
    {"engine/hooks", {"core", "checkpoint/store", "checkpoint/format", "engine/recipe"}},
    {"engine/recipe",
     {"core", "optim", "sharding/zero", "checkpoint/store", "engine/huggingface", "engine/model",
      "engine/preference", "engine/schedule"}},
    {"engine/distillation",
     {"core", "kernels", "checkpoint/store", "checkpoint/interchange", "engine/data"}},
    {"engine/train/layout",
     {"core", "optim", "sharding/mesh", "sharding/zero", "engine/model", "engine/preference",
      "engine/schedule"}},
    {"engine/train/units",
     {"core", "kernels", "optim", "sharding/comm", "sharding/mesh", "sharding/state",
      "sharding/zero", "engine/model", "engine/preference", "engine/train/layout"}},
    {"engine/train/pipeline",
     {"core", "sharding/comm", "sharding/mesh", "engine/model", "engine/schedule",
      "engine/train/layout", "engine/train/units"}},
    {"engine/train",
     {"core", "kernels", "optim", "sharding/comm", "sharding/mesh", "sharding/state",
      "sharding/zero", "engine/model", "engine/data", "engine/preference", "engine/recipe",
      "engine/schedule", "engine/train/layout", "engine/train/pipeline", "engine/train/units"}},
    {"engine/saving",
     {"core", "kernels", "optim", "sharding/mesh", "sharding/state", "sharding/zero", "checkpoint",
      "checkpoint/interchange", "checkpoint/store", "engine/huggingface", "engine/model",
      "engine/data", "engine/report", "engine/recipe", "engine/train", "engine/train/layout",
      "engine/train/units"}},
    {"engine/generate",
     {"core", "kernels", "sharding/mesh", "engine/model", "engine/data", "engine/train"}},
    {"engine/trainer",
     {"core", "sharding/mesh", "engine/data", "engine/distillation", "engine/preference",
      "engine/train", "engine/saving", "engine/generate"}},
    {"engine/launch",
     {"core", "kernels", "sharding/comm", "sharding/processes", "sharding/mesh", "engine/recipe",
      "engine/train", "engine/train/layout"}},
    {"engine/plan",
     {"core", "kernels", "optim", "sharding/comm", "sharding/mesh", "sharding/zero", "engine/model",
      "engine/report", "engine/recipe", "engine/schedule", "engine/train", "engine/train/layout",
      "engine/train/pipeline", "engine/train/units", "engine/saving", "engine/launch"}},
    {"engine/plan/ledger",
     {"core", "sharding/mesh", "engine/recipe", "engine/train", "engine/launch", "engine/offload",
      "engine/plan", "engine/train/layout"}},
    {"engine/plan/time",
     {"core", "optim", "sharding/mesh", "engine/model", "engine/recipe", "engine/schedule",
      "engine/train", "engine/train/layout", "engine/launch", "engine/plan", "engine/plan/ledger"}},
    {"engine/plan/search",
     {"core", "sharding/mesh", "engine/model", "engine/report", "engine/recipe", "engine/train",
      "engine/launch", "engine/train/layout", "engine/plan", "engine/plan/ledger",
      "engine/plan/time"}},
    {"engine/plan/tune",
     {"core", "sharding/mesh", "engine/model", "engine/recipe", "engine/train", "engine/launch",
      "engine/plan", "engine/plan/search", "engine/plan/time"}},
    {"engine/run",
     {"core",
      "kernels",
      "sharding/processes",
      "checkpoint",
      "checkpoint/store",
      "engine/hooks",
      "engine/huggingface",
      "engine/model",
      "engine/data",
      "engine/distillation",
      "engine/report",
      "engine/recipe",
      "engine/train",
      "engine/saving",
      "engine/trainer",
      "engine/launch",
      "engine/plan",
      "engine/plan/time",
      "engine/offload",
      "engine/preference"}},
    {"engine/inference",
     {"core",
      "kernels",
      "sharding/mesh",
      "checkpoint",
      "checkpoint/store",
      "checkpoint/interchange",
      "engine/huggingface",
      "engine/model",
      "engine/data",
      "engine/data/chat",
      "engine/data/tokenizer",
      "engine/distillation",
      "engine/report",
      "engine/recipe",
      "engine/train",
      "engine/saving",
      "engine/generate",
      "engine/launch",
      "engine/plan",
      "engine/train/layout",
      "engine/train/units"}},
    {"include/sherd", {}},
    {"engine/library",
     {"core",
      "include/sherd",
      "sharding/mesh",
      "sharding/state",
      "checkpoint",
      "checkpoint/format",
      "checkpoint/store",
      "engine/data/tokenizer",
      "engine/huggingface",
      "engine/model",
      "engine/report",
      "engine/recipe",
      "engine/train",
      "engine/saving",
      "engine/trainer",
      "engine/generate",
      "engine/launch",
      "engine/plan",
      "engine/plan/time",
      "engine/run",
      "engine/inference"}},
    {"engine/main",
     {"core",
      "checkpoint",
      "checkpoint/store",
      "checkpoint/interchange",
      "engine/data",
      "engine/data/arrow",
      "engine/data/chat",
      "engine/data/tokenize",
      "engine/data/tokenizer",
      "engine/report",
      "engine/recipe",
      "engine/schedule",
      "engine/saving",
      "engine/generate",
      "engine/launch",
      "engine/offload",
      "engine/plan",
      "engine/plan/ledger",
      "engine/plan/search",
      "engine/plan/time",
      "engine/plan/tune",
      "engine/run",
      "engine/inference",
      "sharding/processes"}},
};

struct Home {
  std::string header;  ///< pattern of the include
  std::string file;    ///< pattern of the files that may have it
};

// Third-party libraries. One home each, so that each can be replaced in one place.
const std::vector<Home> kHomes = {
    {"fmt/.*", ".*"},
    {"sherd_version\\.h", "engine/launch/system_info\\.cpp"},
    {"yaml-cpp/.*", "engine/recipe/[^/]*\\.cpp"},
    {"nlohmann/.*",
     "engine/.*\\.cpp|engine/data/tokenizer/json_node\\.h|engine/huggingface/"
     "(config_reader|family_writer|rotary_spelling|rotary_table)\\.h|engine/saving/"
     "saved_counters\\.h|checkpoint/.*"},
    {"CLI/.*", "engine/main/.*"},
    {"Eigen/.*", "kernels/.*"},
    {"hdf5.*", "checkpoint/.*/hdf5[^/]*"},
    {"xxhash\\.h",
     "checkpoint/.*|engine/data/tokenizer/tokenizer\\.cpp|engine/huggingface/"
     "(export|stretch_writer)\\.cpp|engine/"
     "train/(units/frozen_weights|weight_check)\\.cpp|engine/offload/state_file\\.cpp|engine/"
     "distillation/teacher_file\\.cpp"},
    {"(arrow|parquet)/.*", "engine/data/arrow/module/.*"},
    {"pcre2\\.h", "engine/data/tokenizer/pattern/split_pattern\\.cpp"},
    {"unicode/.*", "engine/data/tokenizer/normal_form\\.cpp"},
    {"(zlib|zstd|zstd_errors)\\.h", "engine/data/files/text_stream\\.cpp"},
    {"httplib\\.h", "engine/main/serve/httplib_server\\.cpp"},
    {"mpi\\.h", "sharding/processes/mpi[^/]*"},
    {"nccl\\.h", "sharding/comm/nccl[^/]*\\.cpp"},
    {"cuda.*", "core/cuda[^/]*|kernels/cuda/.*|sharding/comm/nccl[^/]*\\.cpp"},
    {"(cublas|cudnn|cub|cutlass).*", "kernels/cuda/.*"},
};

// What comes with the compiler and the operating system.
const std::regex kSystem(
    "[a-z_]+|(immintrin|arm_neon)\\.h|(unistd|sched|signal|fcntl|glob|fnmatch|time|pthread|dlfcn|"
    "dirent|poll|spawn|netdb|ifaddrs)\\.h|"
    "(sys|sanitizer|netinet|arpa)/.*");

std::vector<std::string> source_files() {
  const fs::path root = SHERD_SOURCE_DIR;
  const std::set<std::string> extensions = {".h", ".cpp", ".cu", ".cuh"};
  std::vector<std::string> files;
  for (const char* folder :
       {"core", "kernels", "sharding", "optim", "checkpoint", "engine", "include"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!extensions.contains(entry.path().extension().string())) continue;
      files.push_back(fs::relative(entry.path(), root).string());
    }
  }
  return files;
}

std::vector<Include> includes() {
  const std::regex directive(R"(\s*#\s*include\s*([<"])([^>"]+)[>"].*)");
  std::vector<Include> all;
  for (const std::string& file : source_files()) {
    std::ifstream stream(fs::path(SHERD_SOURCE_DIR) / file);
    int line = 0;
    for (std::string text; std::getline(stream, text);) {
      ++line;
      std::smatch match;
      if (!std::regex_match(text, match, directive)) continue;
      std::string target = match[2];
      if (target.starts_with("sherd/")) target = "include/" + target;  // as a user writes it
      all.push_back({file, line, target, match[1] == "\""});
    }
  }
  return all;
}

const Layer* layer_of(const std::string& path) {
  const Layer* best = nullptr;
  for (const Layer& layer : kLayers) {
    if (!path.starts_with(layer.folder + "/")) continue;
    if (!best || layer.folder.size() > best->folder.size()) best = &layer;
  }
  return best;
}

TEST(Layering, FindsTheSources) {
  EXPECT_GT(source_files().size(), 20u);
}

TEST(Layering, EveryFileIncludesOnlyWhatItsLayerMay) {
  for (const Include& include : includes()) {
    if (!include.quoted) continue;
    const Layer* from = layer_of(include.file);
    const Layer* to = layer_of(include.target);
    ASSERT_NE(from, nullptr) << include.file;
    if (!to) {
      ADD_FAILURE() << include.where() << ": \"" << include.target
                    << "\" isn't in a layer; write the path from the source folder";
      continue;
    }
    EXPECT_TRUE(from == to || from->may_include.contains(to->folder))
        << include.where() << ": " << from->folder << " must not know " << to->folder << " (\""
        << include.target << "\")";
    EXPECT_TRUE(fs::exists(fs::path(SHERD_SOURCE_DIR) / include.target)) << include.where();
  }
}

void add_closure(const std::string& file, std::set<std::string>& seen) {
  static const std::vector<Include> kAll = includes();
  for (const Include& include : kAll) {
    if (include.quoted && include.file == file && seen.insert(include.target).second) {
      add_closure(include.target, seen);
    }
  }
}

// What a reader of a training step may have to look at, and what a change makes compile again.
TEST(Layering, ATrainingStepKnowsAtMost35Headers) {
  std::set<std::string> headers;
  add_closure("engine/train/training_step.cpp", headers);
  EXPECT_GT(headers.size(), 20u);
  EXPECT_LE(headers.size(), 35u) << ::testing::PrintToString(headers);
}

// A block described by data stays small.
TEST(Layering, NoFileOfTheModelHasMoreThan350Lines) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(SHERD_SOURCE_DIR) / "engine/model")) {
    std::ifstream stream(entry.path());
    std::string line;
    int lines = 0;
    while (std::getline(stream, line)) ++lines;
    EXPECT_LE(lines, 350) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 20);
}

// The tokenizer is below the data room that uses it: of that room it knows the bottom only.
TEST(Layering, TheTokenizerKnowsOnlyTheLowerPartsOfData) {
  for (const Include& include : includes()) {
    if (!include.quoted || !include.file.starts_with("engine/data/tokenizer/")) continue;
    if (!include.target.starts_with("engine/data/")) continue;
    const bool is_allowed = include.target.starts_with("engine/data/tokenizer/") ||
                            include.target == "engine/data/utf8.h" ||
                            include.target == "engine/data/mapped_file.h";
    EXPECT_TRUE(is_allowed) << include.where() << ": \"" << include.target << "\"";
  }
}

TEST(Layering, EveryLibraryHasOneHome) {
  for (const Include& include : includes()) {
    if (include.quoted || std::regex_match(include.target, kSystem)) continue;
    bool is_known = false;
    for (const Home& home : kHomes) {
      if (!std::regex_match(include.target, std::regex(home.header))) continue;
      is_known = true;
      EXPECT_TRUE(std::regex_match(include.file, std::regex(home.file)))
          << include.where() << ": <" << include.target << "> has its home in " << home.file;
    }
    EXPECT_TRUE(is_known) << include.where() << ": <" << include.target
                          << "> has no home yet; give it one in this test and a line in "
                             "docs/dependencies.md";
  }
}

// What a user compiles against needs nothing but the compiler.
TEST(Layering, TheLibrarysHeadersIncludeTheStandardLibraryAlone) {
  int headers = 0;
  for (const Include& include : includes()) {
    if (!include.file.starts_with("include/")) continue;
    ++headers;
    const bool is_standard = std::regex_match(include.target, std::regex("[a-z_]+"));
    EXPECT_TRUE(include.quoted || is_standard) << include.where() << ": " << include.target;
  }
  EXPECT_GT(headers, 20);
}

TEST(Layering, NoLayerIncludesThePrograms) {
  for (const Include& include : includes()) {
    if (include.file.starts_with("engine/main/")) continue;
    EXPECT_FALSE(include.target.starts_with("engine/main/")) << include.where();
  }
}

}  // namespace
