# What packages carry for `sherd init --quickstart`, in the build's folder share/sherd/quickstart:
# recipes/quickstart.yaml, on a text that ships with it. The text is ours: headers of Sherd, with their names.
set(quickstart_folder ${CMAKE_BINARY_DIR}/share/sherd/quickstart)
file(GLOB_RECURSE quickstart_headers RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS
  ${CMAKE_SOURCE_DIR}/core/*.h ${CMAKE_SOURCE_DIR}/kernels/*.h ${CMAKE_SOURCE_DIR}/sharding/*.h
  ${CMAKE_SOURCE_DIR}/optim/*.h ${CMAKE_SOURCE_DIR}/checkpoint/*.h ${CMAKE_SOURCE_DIR}/engine/*.h)
list(SORT quickstart_headers)
list(JOIN quickstart_headers "\n" quickstart_list)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/quickstart_headers CONTENT "${quickstart_list}\n")
add_custom_command(OUTPUT ${quickstart_folder}/recipe.yaml ${quickstart_folder}/text.txt
  COMMAND ${CMAKE_SOURCE_DIR}/cmake/write_quickstart.sh ${CMAKE_SOURCE_DIR}
    ${CMAKE_BINARY_DIR}/generated/quickstart_headers ${quickstart_folder}
  DEPENDS ${CMAKE_SOURCE_DIR}/cmake/write_quickstart.sh ${CMAKE_BINARY_DIR}/generated/quickstart_headers
    ${CMAKE_SOURCE_DIR}/recipes/quickstart.yaml ${quickstart_headers}
  VERBATIM)
add_custom_target(sherd_quickstart DEPENDS ${quickstart_folder}/recipe.yaml ${quickstart_folder}/text.txt)
add_dependencies(sherd sherd_quickstart)
