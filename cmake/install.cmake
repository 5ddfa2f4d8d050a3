# What `cmake --install` installs: component `program` is the program, `library` is libsherd.so with headers,
# the CMake package and pkg-config's file. CPack makes packages of these components.
install(TARGETS sherd RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)

# With CUDA, the layers are libraries of their own, which `./dev bundle` carries.
if(SHERD_SANITIZE OR SHERD_CUDA)
  return()
endif()
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
install(TARGETS sherd_library EXPORT sherd
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/sherd DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT library FILES_MATCHING PATTERN "*.h")
install(EXPORT sherd NAMESPACE sherd:: FILE sherdTargets.cmake DESTINATION ${package_folder}
  COMPONENT library)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/sherdConfig.cmake.in
  ${CMAKE_BINARY_DIR}/package/sherdConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/sherdConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
# Wherever it is installed: from pkg-config's folder up.
file(RELATIVE_PATH SHERD_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_SOURCE_DIR}/cmake/sherd.pc.in ${CMAKE_BINARY_DIR}/package/sherd.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/sherdConfig.cmake
  ${CMAKE_BINARY_DIR}/package/sherdConfigVersion.cmake DESTINATION ${package_folder}
  COMPONENT library)
install(FILES ${CMAKE_BINARY_DIR}/package/sherd.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT library)
