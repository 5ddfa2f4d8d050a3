# What each library is for, and why this one: docs/dependencies.md. `./dev deps` installs them.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
# The serial build: it is thread-safe in Debian, the one for MPI is not.
find_package(PkgConfig REQUIRED)
pkg_check_modules(HDF5 REQUIRED IMPORTED_TARGET hdf5-serial)
# Tokenizers and compressed text.
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(ICU REQUIRED IMPORTED_TARGET icu-uc)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
find_package(ZLIB REQUIRED)
# `sherd serve`; without it, that command says so.
pkg_check_modules(HTTPLIB QUIET cpp-httplib)
# From 0.18 on, its header itself calls OpenSSL, which its package names as private. Older ones don't.
pkg_check_modules(LIBCRYPTO QUIET libcrypto)

# Ranks in many processes; without it they are threads of one. Sanitizers don't see through it, and GPUs
# of several processes aren't used yet.
set(SHERD_MPI OFF)
if(NOT SHERD_SANITIZE AND NOT SHERD_FUZZ AND NOT SHERD_CUDA)
  pkg_check_modules(MPI IMPORTED_TARGET ompi-c)
  if(MPI_FOUND)
    set(SHERD_MPI ON)
    target_compile_definitions(PkgConfig::MPI INTERFACE OMPI_SKIP_MPICXX)  # the C interface alone
  endif()
endif()

if(SHERD_CUDA)
  # 13 is what is compiled and linked here; 12, for drivers before 580, is untried.
  find_package(CUDAToolkit 12 REQUIRED)
  # Neither ships a CMake package; both lie beside the toolkit or where a package manager puts them.
  function(sherd_cuda_library name header library)
    find_path(${name}_INCLUDE_DIR ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
    find_library(${name}_LIBRARY ${library} HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
    add_library(Sherd::${name} UNKNOWN IMPORTED)
    set_target_properties(Sherd::${name} PROPERTIES IMPORTED_LOCATION ${${name}_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${${name}_INCLUDE_DIR})
    target_link_libraries(Sherd::${name} INTERFACE CUDA::cudart_static)
  endfunction()
  sherd_cuda_library(cudnn cudnn.h cudnn)
  sherd_cuda_library(nccl nccl.h nccl)
  # cuDNN's graph API in C++: headers only, put there by `./dev deps cuda`.
  find_path(cudnn_frontend_INCLUDE_DIR cudnn_frontend.h
    HINTS ${CMAKE_SOURCE_DIR}/build/deps/cudnn_frontend/include REQUIRED)
  target_include_directories(Sherd::cudnn SYSTEM INTERFACE ${cudnn_frontend_INCLUDE_DIR})
  target_compile_definitions(Sherd::cudnn INTERFACE CUDNN_FRONTEND_SKIP_JSON_LIB)
  # It refers to NVRTC for kernels of its own that we don't use; cuDNN itself needs it on Hopper.
  target_link_libraries(Sherd::cudnn INTERFACE CUDA::nvrtc)
endif()
