// tests/gpu_check.sh itself, on a machine that seems to have GPUs: what it runs are stand-ins. The
// stand-in for the tests asks the real program which of its tests a filter selects, the one for
// `sherd train` asks the real program whether it knows the recipe and what is set in it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/support/runs/program.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

class GpuCheck : public testing::Test {
 protected:
  GpuCheck() {
    const std::string tests = fs::path(SHERD_PROGRAM).parent_path() / "tests/cuda_tests";
    if (!fs::exists(tests)) return;  // under the sanitizers it isn't built
    stand_in("programs/cuda_tests", R"(list=$(')" + tests + R"(' --gtest_list_tests "$@")
      echo "[  PASSED  ] $(grep -c '^  ' <<<"$list") tests.")");
    stand_in("programs/sherd_cuda_bench", "echo bench");
    // What it would measure are the recipes' matmuls: they are known.
    stand_in("programs/sherd_matmul_tune",
             "for recipe in \"${@:2}\"; do '" SHERD_PROGRAM
             "' plan \"$recipe\" --ledger >/dev/null || exit 4; done; echo rows >\"$1\"");
    stand_in("path/nvidia-smi", "echo 'Stub GPU, 580.65, 81559 MiB'");
    stand_in("path/compute-sanitizer", R"(shift 4; "$@")");
    ready_ = true;
  }
  void SetUp() override {
    if (!ready_) GTEST_SKIP() << "there is no cuda_tests in this build";
  }

  void stand_in(const std::string& name, const std::string& script) {
    const std::string path =
        folder_.write(name, "#!/usr/bin/env bash\necho \"$(basename $0) $*\" >>'" +
                                folder_.file("calls") + "'\n" + script + "\n");
    ::chmod(path.c_str(), 0755);
  }

  /// Runs the check on a machine with `gpus` GPUs; its exit code.
  int check(int gpus, const std::string& environment = "true", const std::string& more = "") {
    stand_in("programs/sherd", "gpus=" + std::to_string(gpus) + R"(
      if [ "$1" = info ]; then
        for ((i = 0; i < gpus; i++)); do echo "cuda $i: Stub, compute capability 9.0"; done
        [ $gpus -gt 0 ] || echo "no GPU: the NVIDIA driver shows no GPU to this process"
        exit
      fi
      plan=$(')" SHERD_PROGRAM R"(' plan "${@:2}" --device-memory 80GiB) || exit 2
      [[ " $* " == *" --share-device "* ]] || ! grep -qE ' of 2([^0-9]|$)' <<<"$plan" || [ $gpus -ge 2 ] ||
        { echo "2 ranks need a GPU each, but this machine shows $gpus" >&2; exit 2; })");
    const std::string script = environment + "; PATH='" + folder_.file("path") + "':$PATH '" +
                               SHERD_SOURCE_DIR "/tests/gpu_check.sh' '" +
                               folder_.file("programs") + "' '" + folder_.file("report.md") + "' " +
                               more;
    const test::ProgramOutcome outcome = test::run_program("/bin/bash", {"-c", script});
    err_ = outcome.err;
    return outcome.exit_code;
  }
  std::string report() const { return folder_.read("report.md"); }
  std::string calls() const { return folder_.read("calls"); }
  std::string call_of(const std::string& program) const {
    const std::string all = calls();
    const std::size_t at = all.rfind(program + " ");
    return at == std::string::npos ? "" : all.substr(at, all.find('\n', at) - at);
  }

  test::TempFolder folder_;
  std::string err_;
  bool ready_ = false;
};

TEST_F(GpuCheck, PassesWithOneGpuAndWithTwoAndOnlyOneIsShared) {
  ASSERT_EQ(check(1), 0) << report() << err_;
  EXPECT_NE(report().find("All of it passed."), std::string::npos) << report();
  EXPECT_NE(calls().find(" --share-device"), std::string::npos) << calls();
  fs::remove(folder_.file("calls"));
  ASSERT_EQ(check(2), 0) << report() << err_;
  EXPECT_EQ(calls().find(" --share-device"), std::string::npos) << calls();
}

TEST_F(GpuCheck, EveryFilterSelectsTestsOfTheRealProgram) {
  ASSERT_EQ(check(1), 0) << report();
  std::size_t sections = 0;
  for (std::size_t at = 0; (at = report().find("[  PASSED  ] ", at)) != std::string::npos;
       ++sections) {
    at += std::string("[  PASSED  ] ").size();
    EXPECT_NE(report()[at], '0') << report();
  }
  EXPECT_EQ(sections, 5u) << report();  // the kernels, the runs, and the sanitizer's three tools
}

TEST_F(GpuCheck, AFilterThatSelectsNothingFails) {
  stand_in(
      "programs/cuda_tests",
      "[[ $* == *CudaRows* ]] && echo '[  PASSED  ] 0 tests.' || echo '[  PASSED  ] 3 tests.'");
  EXPECT_EQ(check(1), 1);
  EXPECT_NE(report().find("FAILED: no test was selected and passed"), std::string::npos)
      << report();
}

TEST_F(GpuCheck, ASectionThatFailsFailsTheWhole) {
  stand_in("programs/sherd_cuda_bench", "exit 4");
  EXPECT_EQ(check(2), 1);
  EXPECT_NE(report().find("status 4 (FAILED)"), std::string::npos) << report();
}

TEST_F(GpuCheck, TuningMeasuresRecipesAndNothingElseAndWritesNextToTheProgram) {
  ASSERT_EQ(check(1, "true", "--tune"), 0) << report() << err_;
  const std::string call = call_of("sherd_matmul_tune");
  for (const char* part : {"programs/matmul_algorithms.txt", "gpt2_124m_h200.yaml", "llama_1b"}) {
    EXPECT_NE(call.find(part), std::string::npos) << call;
  }
  EXPECT_EQ(folder_.read("programs/matmul_algorithms.txt"), "rows\n");
  EXPECT_EQ(calls().find("cuda_tests"), std::string::npos) << calls();
  const std::string mine = folder_.write("mine.yaml", "model: {num_layers: 0}\n");
  EXPECT_EQ(check(1, "true", "--tune '" + mine + "'"), 1) << "no recipe: " << report();
  EXPECT_NE(call_of("sherd_matmul_tune").find("matmul_algorithms.txt " + mine), std::string::npos);
  fs::remove(folder_.file("programs/sherd_matmul_tune"));
  EXPECT_EQ(check(1, "true", "--tune"), 2);
  EXPECT_EQ(check(1), 0) << "the check itself needs no tuner";
}

TEST_F(GpuCheck, SpeedTrainsRecipesAndNothingElse) {
  ASSERT_EQ(check(1, "true", "--speed"), 0) << report() << err_;
  for (const char* part : {"gpt2_124m_h200.yaml", "llama_1b_h200.yaml", "training.seq_length=4096",
                           "moe.num_experts=64", "optimizer.type=muon"}) {
    EXPECT_NE(calls().find(part), std::string::npos) << calls();
  }
  EXPECT_EQ(calls().find("cuda_tests"), std::string::npos) << calls();
}

TEST_F(GpuCheck, WithoutAGpuItSaysSo) {
  EXPECT_EQ(check(0), 3);
  EXPECT_NE(err_.find("the NVIDIA driver shows no GPU"), std::string::npos) << err_;
}

// CUDA 12's packages and 13's have libraries of the same names.
TEST_F(GpuCheck, TakesTheLibrariesOfItsOwnCuda) {
  stand_in("path/ldconfig", "");
  folder_.write("a/nvidia/nccl/lib/libnccl.so.2", "NCCL version 2.21.5+cuda12.4");
  folder_.write("b/nvidia/nccl/lib/libnccl.so.2", "NCCL version 2.28.9+cuda13.0");
  for (const char* package :
       {"a/nvidia_cudnn_cu12-9.1.dist-info", "b/nvidia_cudnn_cu13-9.13.dist-info"}) {
    fs::create_directories(folder_.file(package));
  }
  for (const char* place : {"a", "b"}) {
    folder_.write(std::string(place) + "/nvidia/cudnn/lib/libcudnn.so.9", "cuDNN");
  }
  folder_.write("cuda-12.8/lib/libnvrtc.so.13", "?");
  folder_.write("other/lib/libnvrtc.so.13", "?");
  stand_in("programs/cuda_tests", "echo '[  PASSED  ] 3 tests.'");
  stand_in("programs/sherd_cuda_bench", "echo \"path: $LD_LIBRARY_PATH\"");
  const std::string root = folder_.file("");
  ASSERT_EQ(check(1, "unset LD_LIBRARY_PATH; export SHERD_LIBRARY_ROOTS='" + root + "'"), 0)
      << report() << err_;
  const std::string text = report();
  const auto has = [&](const std::string& place) {
    return text.find(folder_.file(place)) != std::string::npos;
  };
  EXPECT_TRUE(has("b/nvidia/nccl/lib") && has("b/nvidia/cudnn/lib") && has("other/lib")) << text;
  EXPECT_FALSE(has("a/nvidia") || has("cuda-12.8")) << text;
}

}  // namespace
}  // namespace sherd
