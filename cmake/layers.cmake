# A layer is a top-level folder and becomes one library, sherd_<folder>.
#
# What needs CUDA lies in `cuda/` folders, in core/cuda*.cpp or in sharding/comm/nccl.cpp, what needs
# MPI in sharding/processes/mpi*.cpp; its twin for a build without is called no_<library>.cpp. One of the two
# is compiled, and nobody who calls them can tell which. `main/` holds programs, `module/` an optional
# library (cmake/arrow_module.cmake), `library/` libsherd.so (cmake/library.cmake).
function(sherd_layer name)
  cmake_parse_arguments(ARG "" "" "LINK;CUDA_LINK;MPI_LINK" ${ARGN})
  file(GLOB_RECURSE sources RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main/|/module/|/library/")
  set(layer_kind STATIC)
  if(SHERD_CUDA)
    # Shared: a dozen programs each with all kernels inside would be too large to carry to a machine
    # (./dev bundle). A wheel has one library and one program.
    if(NOT SHERD_PYTHON)
      set(layer_kind SHARED)
    endif()
    file(GLOB_RECURSE kernels RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${name}/*.cu)
    list(FILTER sources EXCLUDE REGEX "/no_(cuda|nccl)[^/]*\\.cpp$")
    list(APPEND sources ${kernels})
    list(APPEND ARG_LINK ${ARG_CUDA_LINK})
  else()
    list(FILTER sources EXCLUDE REGEX "/cuda/|/(cuda|nccl)[^/]*\\.cpp$")
  endif()
  if(SHERD_MPI)
    list(FILTER sources EXCLUDE REGEX "/no_mpi\\.cpp$")
    list(APPEND ARG_LINK ${ARG_MPI_LINK})
  else()
    list(FILTER sources EXCLUDE REGEX "/mpi[^/]*\\.cpp$")
  endif()
  # A kernel's speed mustn't depend on what is compiled next to it.
  if(NOT name STREQUAL "kernels")
    sherd_batches(sources ${sources})
  endif()
  add_library(sherd_${name} ${layer_kind} ${sources})
  # Static libraries, too, so that the cuda preset finds in ccache what the cpu preset has compiled.
  if(NOT SHERD_SANITIZE)
    set_target_properties(sherd_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_compile_options(sherd_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition>)
  endif()
  target_include_directories(sherd_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  # Tests and programs, too: what links a layer in this build is ours.
  target_link_libraries(sherd_${name} PUBLIC $<BUILD_INTERFACE:sherd_options> ${ARG_LINK})
endfunction()
