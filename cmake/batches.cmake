# Files of one folder are compiled several at a time, as one source that includes them: what they all
# include is read once, and a build takes half the time. batches.py says which files go together;
# compile.sh is what compilers are called through. Without Python each file is compiled by itself.
set(SHERD_BATCH 8 CACHE STRING "Source files that are compiled at once, at most; 1: each by itself")
# The presets share one folder, so that ccache has for one of them what another has compiled.
set(SHERD_BATCH_FOLDER ${CMAKE_BINARY_DIR}/batches CACHE PATH "Where the sources that include others are written")
find_package(Python3 COMPONENTS Interpreter QUIET)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/batches.py)

# In `result`: SOURCES, in batches. What exists in two forms (cmake/layers.cmake) or has options of its own stays
# by itself: the batches of a folder are the same in each preset.
function(sherd_batches result)
  set(alone "/cuda/|/(no_)?(cuda|nccl|mpi|httplib)[^/]*$|/(processor|processor_test|signals_test|system_info|manifest|watch_test)\\.cpp$|\\.cu$")
  set(sources)
  set(batched)
  foreach(source IN LISTS ARGN)
    get_filename_component(source ${source} ABSOLUTE)
    if(SHERD_BATCH LESS 2 OR NOT Python3_FOUND OR source MATCHES "${alone}")
      list(APPEND sources ${source})
    else()
      file(RELATIVE_PATH source ${CMAKE_SOURCE_DIR} ${source})
      list(APPEND batched ${source})
    endif()
  endforeach()
  if(batched)
    execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/cmake/batches.py ${SHERD_BATCH}
      ${SHERD_BATCH_FOLDER} ${CMAKE_SOURCE_DIR} ${batched} OUTPUT_VARIABLE written COMMAND_ERROR_IS_FATAL ANY
      OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REPLACE "\n" ";" written "${written}")
    list(APPEND sources ${written})
  endif()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()
