# The sources of src/jit, and the device code that the library contains for NVRTC. The build makes a C file of that code
# (sources.h).
#
#   cmake -P sources.cmake ROOT OUTPUT    writes that file

# The headers that a program may include, by the names in their #include lines, and everything that they include. They
# lie in src/ or in include/.
set(trope_device_headers
    core/cuda/early_launch.cuh
    core/cuda/elements.cuh
    core/cuda/ptx.cuh
    core/divide.h
    core/host_device.h
    core/pairs.h
    core/phase.h
    core/plan.h
    core/rotate.h
    core/scalar.h
    core/sincos.h
    fwd/cuda/block.cuh
    fwd/cuda/call.cuh
    trope/trope.h
    varlen/context_parallel.h
    varlen/cuda/search.cuh
    varlen/cuda/tokens.cuh
    varlen/position.h
    varlen/sequence_template.h
    varlen/token.h)
# The standard headers that they include. jit/standard.h stands for all of them.
set(trope_standard_headers algorithm cuda_runtime.h math.h stdalign.h stddef.h stdint.h string.h type_traits)

# Sets `path` to the file of a header.
macro(trope_find_device_header root name)
  set(path ${root}/src/${name})
  if(NOT EXISTS ${path})
    set(path ${root}/include/${name})
  endif()
endmacro()

# Writes the array `identifier` with the bytes of a file and a 0.
function(trope_write_bytes output identifier path)
  file(READ ${path} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes
         "${bytes}")
  file(APPEND ${output} "static const unsigned char ${identifier}[] = {\n${bytes}0};\n")
endfunction()

function(trope_write_sources root output)
  set(list "")
  set(number 0)
  file(WRITE ${output} "/* Made by src/jit/sources.cmake. */\n#include \"jit/sources.h\"\n\n")
  trope_write_bytes(${output} standard ${root}/src/jit/standard.h)
  foreach(name IN LISTS trope_standard_headers)
    string(APPEND list "    {\"${name}\", (const char *)standard, sizeof standard - 1},\n")
  endforeach()
  foreach(name IN LISTS trope_device_headers)
    trope_find_device_header(${root} ${name})
    math(EXPR number "${number} + 1")
    trope_write_bytes(${output} source_${number} ${path})
    string(APPEND list "    {\"${name}\", (const char *)source_${number}, sizeof source_${number} - 1},\n")
  endforeach()
  file(APPEND ${output} "const trope_source trope_sources[] = {\n${list}};\n"
                        "const int trope_source_count = sizeof trope_sources / sizeof trope_sources[0];\n")
endfunction()

if(CMAKE_SCRIPT_MODE_FILE)
  trope_write_sources(${CMAKE_ARGV3} ${CMAKE_ARGV4})
  return()
endif()

# The files of src/jit that need no CUDA.
foreach(name cache compile jit nvrtc)
  list(APPEND trope_jit_sources ${PROJECT_SOURCE_DIR}/src/jit/${name}.c)
endforeach()

# Adds src/jit, without its driver, to a target of the directory that calls this.
function(trope_add_jit target)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/device_code.c)
  set(this ${PROJECT_SOURCE_DIR}/src/jit/sources.cmake)
  set(paths ${PROJECT_SOURCE_DIR}/src/jit/standard.h)
  foreach(name IN LISTS trope_device_headers)
    trope_find_device_header(${PROJECT_SOURCE_DIR} ${name})
    list(APPEND paths ${path})
  endforeach()
  add_custom_command(OUTPUT ${output} COMMAND ${CMAKE_COMMAND} -P ${this} ${PROJECT_SOURCE_DIR} ${output}
                     DEPENDS ${this} ${paths} VERBATIM COMMENT "Embedding the device code")
  target_sources(${target} PRIVATE ${trope_jit_sources} ${output})
endfunction()
