# libsherd_arrow.so, which reads Parquet and Arrow files: where pyarrow's headers and libraries are, which
# `./dev deps arrow` unpacks. The program looks for it when such a file is read, and never links it.
set(SHERD_PYARROW ${CMAKE_SOURCE_DIR}/build/deps/pyarrow/pyarrow CACHE PATH
  "The folder of pyarrow with include, libarrow.so.N and libparquet.so.N")
# Looked at by each build, so that it is compiled as soon as they are there.
file(GLOB arrow_header CONFIGURE_DEPENDS ${SHERD_PYARROW}/include/arrow/api.h)
file(GLOB arrow_library CONFIGURE_DEPENDS ${SHERD_PYARROW}/libarrow.so.[0-9]*)
file(GLOB parquet_library CONFIGURE_DEPENDS ${SHERD_PYARROW}/libparquet.so.[0-9]*)
set(SHERD_ARROW OFF)
if(arrow_header AND arrow_library AND parquet_library)
  set(SHERD_ARROW ON)
  file(GLOB arrow_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/engine/data/arrow/module/*.cpp)
  add_library(sherd_arrow MODULE ${arrow_sources})
  target_include_directories(sherd_arrow PRIVATE ${CMAKE_SOURCE_DIR})
  target_include_directories(sherd_arrow SYSTEM PRIVATE ${SHERD_PYARROW}/include)
  target_link_libraries(sherd_arrow PRIVATE ${arrow_library} ${parquet_library})
  # Never with a sanitizer: memory and exceptions of the two sides don't mix, and Arrow has none.
  target_compile_options(sherd_arrow PRIVATE -Wall -Wextra $<$<BOOL:${SHERD_WERROR}>:-Werror>)
  set_target_properties(sherd_arrow PROPERTIES CXX_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} BUILD_RPATH "$ORIGIN")
  add_dependencies(sherd sherd_arrow)
endif()
