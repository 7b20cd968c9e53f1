# `cmake --install` copies the library, its header, the documentation, the CMake package and trope.pc.

install(TARGETS trope EXPORT trope
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES include/trope/trope.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/trope)
install(FILES LICENSE README.md CHANGELOG.md SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES third_party/xla/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME LICENSE.xla) # of src/api/xla.c
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN *.md PATTERN *.svg)
# Only the wheel (pyproject.toml) installs this component. The component is a single file, because a wheel cannot contain
# symbolic links.
if(BUILD_SHARED_LIBS)
  install(FILES $<TARGET_FILE:trope> DESTINATION trope RENAME libtrope.so COMPONENT python EXCLUDE_FROM_ALL)
endif()

# find_package(trope CONFIG) defines the target trope::trope.
set(trope_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/trope)
set(trope_needs_cuda OFF)
if(TROPE_CUDA_FOUND AND NOT BUILD_SHARED_LIBS)
  set(trope_needs_cuda ON)
endif()
configure_package_config_file(cmake/trope-config.cmake.in trope-config.cmake INSTALL_DESTINATION ${trope_package_dir})
# A program must request a version with the same major number. SOVERSION follows the same rule.
write_basic_package_version_file(trope-config-version.cmake COMPATIBILITY SameMajorVersion)
install(EXPORT trope NAMESPACE trope:: FILE trope-targets.cmake DESTINATION ${trope_package_dir})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/trope-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/trope-config-version.cmake
        DESTINATION ${trope_package_dir})

# trope.pc derives the prefix from its own location, so `cmake --install --prefix` may name any folder. If trope is shared,
# the libraries that only a static trope needs are in Libs.private.
file(RELATIVE_PATH trope_pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" trope_pc_prefix "${trope_pc_prefix}")
file(RELATIVE_PATH trope_pc_libdir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH trope_pc_includedir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
set(trope_pc_private "-lm -pthread")
if(TROPE_CUDA_FOUND)
  string(APPEND trope_pc_private " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lstdc++ -ldl -lrt")
endif()
set(trope_pc_libs "")
if(NOT BUILD_SHARED_LIBS)
  set(trope_pc_libs " ${trope_pc_private} ${trope_stays_loaded}")
  set(trope_pc_private "")
endif()
configure_file(cmake/trope.pc.in trope.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/trope.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
