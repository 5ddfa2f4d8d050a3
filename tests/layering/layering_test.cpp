// Who may include whom. The table is the one in docs/architecture.md; this test reads every
// #include of the layers and compares.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

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

// The longest matching folder decides, so engine/model is not simply engine.
const std::vector<Layer> kLayers = {
    {"core", {}},
    {"kernels", {"core"}},
    {"sharding", {"core", "kernels"}},
    {"optim", {"core", "kernels", "sharding"}},
    {"checkpoint", {"core", "sharding"}},
    {"engine/model", {"core", "kernels"}},
    {"engine/data", {"core"}},
    {"engine",
     {"core", "kernels", "sharding", "optim", "checkpoint", "engine/model", "engine/data"}},
};

struct Home {
  std::string header;  ///< pattern of the include
  std::string file;    ///< pattern of the files that may have it
};

// Third-party libraries. One home each, so that each can be replaced in one place.
const std::vector<Home> kHomes = {
    {"fmt/.*", ".*"},
    {"yaml-cpp/.*", "engine/recipe[^/]*\\.cpp"},
    {"nlohmann/.*", "engine/[^/]*\\.cpp|checkpoint/.*"},
    {"CLI/.*", "engine/main/.*"},
    {"cblas\\.h", "kernels/cpu/gemm\\.cpp"},
    {"Eigen/.*", "kernels/.*"},
    {"hdf5.*", "checkpoint/hdf5[^/]*"},
    {"xxhash\\.h", "checkpoint/.*"},
    {"mpi\\.h", "sharding/comm/mpi[^/]*\\.cpp"},
    {"nccl\\.h", "sharding/comm/nccl[^/]*\\.cpp"},
    {"cuda.*", "core/cuda[^/]*|kernels/cuda/.*|sharding/comm/nccl[^/]*\\.cpp"},
    {"(cublas|cudnn|cub|cutlass).*", "kernels/cuda/.*"},
};

// What comes with the compiler and the operating system.
const std::regex kSystem(
    "[a-z_]+|immintrin\\.h|(unistd|sched|signal|fcntl|glob|fnmatch|time|pthread|dlfcn|dirent)\\.h|"
    "(sys|sanitizer)/.*");

std::vector<std::string> source_files() {
  const fs::path root = SHERD_SOURCE_DIR;
  const std::set<std::string> extensions = {".h", ".cpp", ".cu", ".cuh"};
  std::vector<std::string> files;
  for (const char* folder : {"core", "kernels", "sharding", "optim", "checkpoint", "engine"}) {
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
      all.push_back({file, line, match[2], match[1] == "\""});
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

TEST(Layering, NoLayerIncludesThePrograms) {
  for (const Include& include : includes()) {
    if (include.file.starts_with("engine/main/")) continue;
    EXPECT_FALSE(include.target.starts_with("engine/main/")) << include.where();
  }
}

}  // namespace
