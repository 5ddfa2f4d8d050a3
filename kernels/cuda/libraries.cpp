#include "kernels/libraries.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <dlfcn.h>
#include <fmt/format.h>

namespace sherd::kernels {
namespace {

// cuBLAS counts as 130101, cuDNN 9 as 91300: major x 10000, minor x 100, patch.
std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

template <class Function>
std::string path_of(Function* function) {
  Dl_info info{};
  return dladdr(reinterpret_cast<const void*>(function), &info) != 0 ? info.dli_fname : "";
}

}  // namespace

std::vector<LoadedLibrary> loaded_libraries() {
  return {{"cuBLASLt", version_text(cublasLtGetVersion()),
           static_cast<int>(cublasLtGetCudartVersion()), path_of(&cublasLtGetVersion)},
          {"cuDNN", version_text(cudnnGetVersion()), static_cast<int>(cudnnGetCudartVersion()),
           path_of(&cudnnGetVersion)}};
}

}  // namespace sherd::kernels
