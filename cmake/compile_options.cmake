set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# A preset with sanitizers says its own (CMakePresets.json).
if(NOT SHERD_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1")
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/compile.sh ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
else()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/compile.sh)
endif()

# Programs look for libraries beside themselves first: `./dev bundle`.
set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")
add_link_options(-Wl,--disable-new-dtags)  # and so do the libraries that they bring

if(SHERD_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES ${SHERD_CUDA_ARCHITECTURES})
  enable_language(CUDA)
  # Debian 12's CMake 3.25 doesn't know this nvcc's flag for the standard.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -g1 -lineinfo")
endif()

# What every target of ours is compiled with. Targets link it; the directory has no options, so that
# whoever builds Sherd inside of another project gets the same bits, and their own code isn't touched.
add_library(sherd_options INTERFACE)

# Options of the host compiler, for C++ files and for the host's half of CUDA files.
function(sherd_compile_options)
  target_compile_options(sherd_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${ARGN}>")
  string(REPLACE ";" "," joined "${ARGN}")
  target_compile_options(sherd_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${joined}>")
endfunction()

# -Wrestrict: false positives on std::string concatenation in g++ 12 (GCC bug 105329).
# -Wsubobject-linkage: types of an anonymous namespace in a .cpp file that a batch includes.
# -Wpass-failed: clang's remark on a loop that stays scalar. Results are the same.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(needless_warnings -Wno-restrict -Wno-subobject-linkage)
else()
  set(needless_warnings -Wno-pass-failed)
endif()
sherd_compile_options(-Wall -Wextra -Wno-unknown-pragmas ${needless_warnings})
if(SHERD_WERROR)
  sherd_compile_options(-Werror)
  target_compile_options(sherd_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()

if(SHERD_NATIVE)
  sherd_compile_options(-march=native)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  sherd_compile_options(-march=x86-64-v3)
endif()

# Files for processors that have more than that; kernels/isa.h chooses among them when the program
# starts. On another processor, or a compiler that doesn't know one, they are compiled empty.
function(sherd_isa_options)
  include(CheckCXXCompilerFlag)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    return()
  endif()
  foreach(isa "avx512;-mavx512f" "avx512_bf16;-mavx512f;-mavx512bf16"
      "amx;-mavx512f;-mamx-tile;-mamx-bf16")
    list(POP_FRONT isa folder)
    check_cxx_compiler_flag("${isa}" SHERD_COMPILES_${folder})
    if(SHERD_COMPILES_${folder})
      file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cpu/matmul/${folder}/*.cpp)
      if(NOT files)
        message(FATAL_ERROR "kernels/cpu/matmul/${folder} has no sources to compile with ${isa}")
      endif()
      set_source_files_properties(${files} PROPERTIES COMPILE_OPTIONS "${isa}")
    endif()
  endforeach()
endfunction()

# Bits: multiply and add are never contracted by the compiler, so an element gets the same result in
# a vector's body and in its tail, and on a GPU. Neither errno nor floating-point traps are used;
# saying so lets loops vectorise. `#pragma omp simd` is read, OpenMP's runtime isn't used.
sherd_compile_options(-ffp-contract=off -fno-math-errno -fno-trapping-math -fopenmp-simd)
# Division, square root and subnormals are IEEE's in device code by default. constexpr functions of
# the standard library (std::bit_cast) may be called there.
# nvcc 13 and fmt 9 disagree about consteval; the C++ files keep the check of format strings.
set(SHERD_DEVICE_OPTIONS --fmad=false --expt-relaxed-constexpr -DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1)
target_compile_options(sherd_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${SHERD_DEVICE_OPTIONS}>")

if(SHERD_SANITIZE)
  target_compile_options(sherd_options INTERFACE -fsanitize=${SHERD_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(sherd_options INTERFACE -fsanitize=${SHERD_SANITIZE})
  # Instrumented code confuses g++ 12's flow analysis, even inside its own <regex>; the build without
  # sanitizers keeps the warning.
  target_compile_options(sherd_options INTERFACE -Wno-maybe-uninitialized)
  if(SHERD_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_definitions(sherd_options INTERFACE __SANITIZE_ADDRESS__=1)  # as g++ says it
  endif()
  if(SHERD_SANITIZE MATCHES "undefined")
    target_compile_options(sherd_options INTERFACE -fno-sanitize-recover=undefined)
  endif()
endif()
