// The emulated GPU's kernels as work of the fake machine's streams.
#include "tests/emulated_gpu/cuda_runtime_api.h"
#include "tests/emulated_gpu/races.h"
#include "tests/fake_cuda/machine.h"

namespace emulated {

void enqueue(cudaStream_t stream, const char* name, std::function<std::vector<Touched>()> work) {
  static thread_local std::vector<fake_cuda::Access> last;
  const auto run = [work = std::move(work)] {
    last.clear();
    for (const Touched& piece : work()) {
      last.push_back({piece.begin, static_cast<std::size_t>(piece.end - piece.begin), piece.write});
    }
  };
  fake_cuda::launch(stream, {.name = name, .run = run, .seen = [] { return std::move(last); }});
}

bool has_fake_machine() {
  return true;
}
std::vector<Piece> device_memory() {
  std::vector<Piece> pieces;
  for (const auto& [data, bytes] : fake_cuda::memory()) {
    const auto* begin = static_cast<const char*>(data);
    pieces.push_back({begin, begin + bytes});
  }
  return pieces;
}

std::vector<std::string> take_races() {
  std::vector<std::string> races = fake_cuda::races();
  fake_cuda::forget_races();
  return races;
}

}  // namespace emulated
