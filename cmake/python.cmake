# The Python module, for `./dev wheel`: scikit-build-core sets SHERD_PYTHON (python/pyproject.toml). The wheel
# has the module, the library that it calls, the program and the text of its quickstart.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_STRIP_TRAILING_WHITESPACE
  OUTPUT_VARIABLE nanobind_ROOT)
find_package(nanobind CONFIG REQUIRED)
nanobind_add_module(sherd_python NB_STATIC ${CMAKE_SOURCE_DIR}/python/module.cpp
  ${CMAKE_SOURCE_DIR}/python/trainer.cpp)
set(module_symbols ${CMAKE_SOURCE_DIR}/cmake/python_symbols.map)
target_link_libraries(sherd_python PRIVATE sherd_library)
target_link_options(sherd_python PRIVATE -Wl,--version-script=${module_symbols})
set_target_properties(sherd_python PROPERTIES OUTPUT_NAME _sherd INSTALL_RPATH "$ORIGIN"
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/sherd)
# For python/sanitize.py: the module and libsherd's own files, not the layers.
option(SHERD_SANITIZE_MODULE "Address and undefined-behaviour sanitizers in the Python module and in what it calls" OFF)
set(without_types "")
if(SHERD_SANITIZE_MODULE)
  set(without_types OPTIONAL)
  foreach(target sherd_python sherd_library)
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined -fno-omit-frame-pointer -g1)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  endforeach()
endif()
# Types of all names, read from the module itself.
nanobind_add_stub(sherd_python_stub MODULE _sherd OUTPUT ${CMAKE_BINARY_DIR}/python/sherd/_sherd.pyi
  PYTHON_PATH ${CMAKE_BINARY_DIR}/python/sherd DEPENDS sherd_python)
install(TARGETS sherd_python LIBRARY DESTINATION sherd COMPONENT python)
install(FILES ${CMAKE_BINARY_DIR}/python/sherd/_sherd.pyi DESTINATION sherd COMPONENT python ${without_types})
install(FILES $<TARGET_FILE:sherd_library> DESTINATION sherd COMPONENT python
  RENAME $<TARGET_SONAME_FILE_NAME:sherd_library>)
install(PROGRAMS $<TARGET_FILE:sherd> DESTINATION sherd/bin COMPONENT python)
install(DIRECTORY ${quickstart_folder} DESTINATION sherd/share/sherd COMPONENT python)

# NVIDIA's libraries come from their own wheels, which lie next to this one. Loaders look there first.
if(SHERD_CUDA)
  set(nvidia_folders nvidia/cu13/lib nvidia/cudnn/lib nvidia/nccl/lib)
  list(TRANSFORM nvidia_folders PREPEND "$ORIGIN/../" OUTPUT_VARIABLE from_package)
  list(TRANSFORM nvidia_folders PREPEND "$ORIGIN/../../" OUTPUT_VARIABLE from_bin)
  set_target_properties(sherd_library PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${from_package}")
  set_target_properties(sherd PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${from_bin}")
endif()

# Optionally a second module, by Python's stable ABI: for 3.12 and all later versions, next to the one for the Python
# that builds. Python prefers the module of its own version.
set(SHERD_PYTHON_HEADERS "" CACHE PATH "Folder with python3.N/Python.h of 3.12 or later, for a module of the stable ABI")
if(SHERD_PYTHON_HEADERS)
  file(GLOB stable_headers ${SHERD_PYTHON_HEADERS}/python3.*)
  add_library(sherd_python_stable MODULE ${CMAKE_SOURCE_DIR}/python/module.cpp
    ${CMAKE_SOURCE_DIR}/python/trainer.cpp ${NB_DIR}/src/nb_combined.cpp)
  target_include_directories(sherd_python_stable SYSTEM PRIVATE ${stable_headers} ${SHERD_PYTHON_HEADERS}
    ${NB_DIR}/include ${NB_DIR}/ext/robin_map/include)
  target_compile_definitions(sherd_python_stable PRIVATE Py_LIMITED_API=0x030C0000 NDEBUG)
  target_compile_options(sherd_python_stable PRIVATE -fno-strict-aliasing)
  target_link_libraries(sherd_python_stable PRIVATE sherd_library)
  target_link_options(sherd_python_stable PRIVATE -Wl,--version-script=${module_symbols})
  set_target_properties(sherd_python_stable PROPERTIES PREFIX "" OUTPUT_NAME _sherd SUFFIX .abi3.so
    INSTALL_RPATH "$ORIGIN" CXX_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/stable)
  add_dependencies(sherd_python sherd_python_stable)
  install(TARGETS sherd_python_stable LIBRARY DESTINATION sherd COMPONENT python)
endif()
