# `cmake --install`: the programs (component "programs"), and the client as a package (component "client") that other
# projects use by find_package(attnd) and attnd::client, or attnd::client_c for its C ABI. client/examples is one of them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(headers ${CMAKE_INSTALL_INCLUDEDIR}/attnd)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/attnd)
install(TARGETS attnd attnctl attnload RUNTIME COMPONENT programs)

# With what it is made of, which a static library needs.
set(libraries attnd_client attnd_region attnd_region_protocol attnd_proto)
foreach(library ${libraries})
  string(REPLACE attnd_ "" exported ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${exported} INSTALL_RPATH "$ORIGIN")
endforeach()
target_compile_features(attnd_client INTERFACE cxx_std_17)
target_include_directories(attnd_client INTERFACE $<INSTALL_INTERFACE:${headers}>)
target_include_directories(attnd_proto INTERFACE $<INSTALL_INTERFACE:${headers}/proto>)
install(TARGETS ${libraries} EXPORT attndTargets ARCHIVE COMPONENT client LIBRARY COMPONENT client)

# The C ABI, which needs none of that.
set_target_properties(attnd_client_c PROPERTIES EXPORT_NAME client_c INSTALL_RPATH "$ORIGIN")
target_include_directories(attnd_client_c INTERFACE $<INSTALL_INTERFACE:${headers}>)
install(TARGETS attnd_client_c EXPORT attndTargets LIBRARY COMPONENT client)
install(EXPORT attndTargets NAMESPACE attnd:: DESTINATION ${package} COMPONENT client)

foreach(header client/attnd_client.h client/client.h client/region.h server/regions/protocol/unique_fd.h)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${header} DESTINATION ${headers}/${folder} COMPONENT client)
endforeach()
install(DIRECTORY ${CMAKE_BINARY_DIR}/proto/attnd ${CMAKE_SOURCE_DIR}/proto/attnd DESTINATION ${headers}/proto
  COMPONENT client FILES_MATCHING PATTERN "*.h" PATTERN "*.proto")

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/attndConfig.cmake.in attndConfig.cmake INSTALL_DESTINATION ${package})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(attndConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/attndConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/attndConfigVersion.cmake
  DESTINATION ${package} COMPONENT client)
