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
# Types of all names, read from the module itself.
nanobind_add_stub(sherd_python_stub MODULE _sherd OUTPUT ${CMAKE_BINARY_DIR}/python/sherd/_sherd.pyi
  PYTHON_PATH ${CMAKE_BINARY_DIR}/python/sherd DEPENDS sherd_python)
install(TARGETS sherd_python LIBRARY DESTINATION sherd COMPONENT python)
install(FILES ${CMAKE_BINARY_DIR}/python/sherd/_sherd.pyi DESTINATION sherd COMPONENT python)
install(FILES $<TARGET_FILE:sherd_library> DESTINATION sherd COMPONENT python
  RENAME $<TARGET_SONAME_FILE_NAME:sherd_library>)
install(PROGRAMS $<TARGET_FILE:sherd> DESTINATION sherd/bin COMPONENT python)
install(DIRECTORY ${quickstart_folder} DESTINATION sherd/share/sherd COMPONENT python)
