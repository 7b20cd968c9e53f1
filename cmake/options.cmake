# Every option of the build, in one place.
option(BUILD_SHARED_LIBS "Build trope as a shared library" ON)
option(TROPE_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TROPE_LONG_TESTS "Also run the tests labelled long (minutes to an hour)" OFF)
option(TROPE_TOOLS "Build the trope command line" ${PROJECT_IS_TOP_LEVEL})
option(TROPE_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(TROPE_INSTALL "Install the library, its header and its package files" ${PROJECT_IS_TOP_LEVEL})
option(TROPE_WERROR "Treat warnings as errors" OFF)
set(TROPE_SANITIZE "" CACHE STRING "Sanitizers to build everything with, such as address,undefined")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG")

if(TROPE_SANITIZE)
  add_compile_options(-fsanitize=${TROPE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${TROPE_SANITIZE})
endif()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(TROPE_X86 ON)
endif()

# Threads. Without OpenMP the library works on the calling thread alone.
find_package(OpenMP COMPONENTS C)
