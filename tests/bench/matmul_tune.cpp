// Measures which of cuBLASLt's algorithms multiplies the matrices of some recipes fastest on this GPU, and writes it
// down: `./dev gpu-check --tune`. What is measured are the matmuls of each recipe's step as its ledger lists them
// (sherd plan --ledger), on random operands, each time with the caches overwritten before.
//
//   sherd_matmul_tune FILE RECIPE...    FILE keeps its rows of other GPUs and cuBLASLt versions
#include <cstdio>
#include <fstream>
#include <sstream>

#include "engine/launch/device.h"
#include "engine/plan/ledger/step_ledger.h"
#include "kernels/cuda/matmul_tuning.h"
#include "kernels/pointwise.h"
#include "tests/support/devices/matmul_operands.h"

namespace sherd {
namespace {

using kernels::device_common::MatmulKey;
using kernels::device_common::MatmulRow;

constexpr std::int64_t kSweepBytes = 256 << 20;  // several times any L2 cache

std::set<MatmulKey> keys_of(const std::vector<std::string>& recipes) {
  std::set<MatmulKey> keys;
  for (const std::string& path : recipes) {
    const engine::Recipe recipe =
        engine::resolve_recipe(
            {.path = path, .text = {}, .sets = {}, .ranks = {}, .reads_data = false})
            .values;
    const CudaStreamOptions stream = engine::cuda_options(recipe).stream;
    const std::set<std::string> matmuls = engine::step_ledger(recipe, engine::h100_rates()).matmuls;
    for (const std::string& text : matmuls) {
      keys.insert(on_stream(kernels::device_common::matmul_key_of(text), stream));
    }
    std::printf("%s: %zu kinds of matmuls\n", path.c_str(), matmuls.size());
  }
  return keys;
}

std::vector<MatmulRow> measured(const std::set<MatmulKey>& keys) {
  std::int64_t most = 0;
  for (const MatmulKey& key : keys) most = std::max(most, test::operand_bytes(key));
  const auto memory = cuda_arena_memory(kSweepBytes + most);
  const Tensor sweep{memory->data(), DType::kU8, kSweepBytes};
  std::vector<MatmulRow> rows;
  for (const MatmulKey& key : keys) {
    const auto stream =
        make_cuda_stream({}, {.allow_tf32 = key.allow_tf32, .deterministic = key.deterministic});
    const test::OperandsOfMatmul operands =
        test::random_operands(*stream, key, {memory->data() + kSweepBytes, DType::kU8, most});
    const auto timed =
        kernels::cuda::time_algorithms(*stream, key, operands.matmul, operands.workspace,
                                       {.before = [&] { kernels::fill_zero(*stream, sweep); }});
    const auto best = row_worth_writing(key, timed);
    std::printf("%s: %zu algorithms, %s\n", text_of(key).c_str(), timed.size(),
                best.empty() ? "the heuristic's" : best[0].remark.c_str());
    std::fflush(stdout);
    rows.insert(rows.end(), best.begin(), best.end());
  }
  return rows;
}

void tune(const std::string& file, const std::vector<std::string>& recipes) {
  require_cuda_devices(1);
  use_cuda_device(0);
  const auto place = kernels::cuda::matmul_place(0);
  const std::set<MatmulKey> keys = keys_of(recipes);
  const std::vector<MatmulRow> rows = measured(keys);
  std::ostringstream before;
  before << std::ifstream(file).rdbuf();
  std::ofstream out(file, std::ios::trunc);
  out << with_rows(before.str(), place, rows);
  if (!out.flush()) throw DataError("{}: can't be written", file);
  std::printf("%s: %zu of %zu kinds of matmuls are faster than the heuristic says; in %s\n",
              place.text().c_str(), rows.size(), keys.size(), file.c_str());
}

}  // namespace
}  // namespace sherd

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "sherd_matmul_tune FILE RECIPE...\n");
    return 2;
  }
  try {
    sherd::tune(arguments[1], {arguments + 2, arguments + count});
  } catch (const sherd::Error& error) {
    std::fprintf(stderr, "sherd_matmul_tune: %s\n", error.what());
    return error.exit_code();
  }
}
