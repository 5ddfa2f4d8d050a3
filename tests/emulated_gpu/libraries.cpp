// Which of NVIDIA's libraries the emulated GPU's program has loaded. Matmuls and attention are the real sources over fakes of
// cuBLASLt and cuDNN (tests/fake_cuda/blas.h, cudnn.h), or linear.cpp and attention.cpp in this folder.
#include "kernels/libraries.h"

#include "tests/emulated_gpu/libraries.h"

std::vector<sherd::LoadedLibrary> emulated::libraries_found;

namespace sherd::kernels {

std::vector<LoadedLibrary> loaded_libraries() {
  return emulated::libraries_found;
}

}  // namespace sherd::kernels
