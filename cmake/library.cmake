# libsherd.so, the library of include/sherd: the layers inside, and nothing exported but what these headers
# declare. Its sources are in engine/library. A build with sanitizers has a static one: its layers aren't
# position-independent.
file(GLOB library_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/engine/library/*.cpp)
# Its ranks are threads of one process, so it takes the twin without MPI before a layer offers the other.
list(APPEND library_sources ${CMAKE_SOURCE_DIR}/sharding/processes/no_mpi.cpp)
list(APPEND library_sources ${CMAKE_SOURCE_DIR}/engine/main/processor.cpp)
set(library_kind SHARED)
if(SHERD_SANITIZE)
  set(library_kind STATIC)
endif()
add_library(sherd_library ${library_kind} ${library_sources})
add_library(sherd::sherd ALIAS sherd_library)
# While the version is 0.x, each x may have another interface.
set_target_properties(sherd_library PROPERTIES OUTPUT_NAME sherd EXPORT_NAME sherd
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_compile_definitions(sherd_library PRIVATE SHERD_INSIDE)
target_compile_features(sherd_library INTERFACE cxx_std_20)
target_include_directories(sherd_library PUBLIC
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(sherd_library PRIVATE sherd_engine)
if(NOT SHERD_SANITIZE)
  # The layers' symbols, and those of dependencies that are templates, stay inside.
  set(library_symbols ${CMAKE_SOURCE_DIR}/cmake/library_symbols.map)
  target_link_options(sherd_library PRIVATE -Wl,--as-needed -Wl,--version-script=${library_symbols})
  set_target_properties(sherd_library PROPERTIES LINK_DEPENDS ${library_symbols})
endif()
