# The component `program`: the program, its man pages, its shells' completion and the quickstart, as `cmake --install
# build/cpu --component program` puts them, and as a Debian package (`cpack` in the build's folder).
# The program writes pages and completion itself when it is installed.
include(GNUInstallDirs)
set(CPACK_PACKAGE_CONTACT "Sherd maintainers <maintainers@sherd.example>")
set(pages ${CMAKE_BINARY_DIR}/pages)
install(CODE "execute_process(COMMAND \"${CMAKE_SOURCE_DIR}/cmake/write_pages.sh\" \"$<TARGET_FILE:sherd>\"
  \"${pages}\" \"${CMAKE_SOURCE_DIR}\" \"${CPACK_PACKAGE_CONTACT}\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT program)
install(DIRECTORY ${pages}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT program)
install(FILES ${pages}/completion/sherd COMPONENT program
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${pages}/completion/_sherd COMPONENT program
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(FILES ${pages}/completion/sherd.fish COMPONENT program
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(DIRECTORY ${quickstart_folder} DESTINATION ${CMAKE_INSTALL_DATADIR}/sherd COMPONENT program)
install(DIRECTORY ${pages}/doc/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/sherd COMPONENT program)

set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL program)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME sherd)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS openmpi-bin)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "training of transformers with sharded state
Sherd trains transformers whose parameters, gradients and optimizer state
are sharded over ranks (ZeRO stages 0 to 3). A recipe, a YAML file,
describes a run.")
set(CPACK_DEBIAN_PACKAGE_RELEASE "")
include(CPack)
