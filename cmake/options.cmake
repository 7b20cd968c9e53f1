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

# CUDA. AUTO builds the backend if there is a compiler for it.
set(TROPE_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE TROPE_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT TROPE_CUDA STREQUAL "OFF" AND NOT TROPE_SANITIZE)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Ampere, Hopper and Blackwell, and PTX of the last for what comes after.
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100-real 120)
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(TROPE_CUDA_FOUND ON)
  elseif(TROPE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TROPE_CUDA is ON and no CUDA compiler (nvcc) was found")
  endif()
endif()
