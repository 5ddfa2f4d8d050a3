set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# -Wrestrict: false positives on std::string concatenation in g++ 12 (GCC bug 105329).
add_compile_options(-Wall -Wextra -Wno-unknown-pragmas -Wno-restrict)
if(SHERD_WERROR)
  add_compile_options(-Werror)
endif()

if(SHERD_NATIVE)
  add_compile_options(-march=native)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_compile_options(-march=x86-64-v3)
endif()

# Bits: multiply and add are never contracted behind our back, so an element gets the same result in
# a vector's body and in its tail. Neither errno nor floating-point traps are used; saying so lets
# loops vectorise. `#pragma omp simd` is read, OpenMP's runtime isn't used.
add_compile_options(-ffp-contract=off -fno-math-errno -fno-trapping-math -fopenmp-simd)

if(SHERD_SANITIZE)
  add_compile_options(-fsanitize=${SHERD_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${SHERD_SANITIZE})
  # Instrumented code confuses g++ 12's flow analysis, even inside its own <regex>; the build without
  # sanitizers keeps the warning.
  add_compile_options(-Wno-maybe-uninitialized)
  if(SHERD_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
