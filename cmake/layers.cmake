# A layer is a top-level folder and becomes one static library, sherd_<folder>.
# `cuda/` folders are compiled only with CUDA, `main/` holds programs.
function(sherd_layer name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  file(GLOB_RECURSE sources RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/(cuda|main)/")
  add_library(sherd_${name} STATIC ${sources})
  target_include_directories(sherd_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(sherd_${name} PUBLIC ${ARG_LINK})
endfunction()
