# Compiler and linker options that make a defect harder to exploit. Their cost per call is too small to measure: the code of
# the kernels does not change, except for endbr64 at the start of each function. Each option is used if the compiler and the
# linker support it. trope_hardening lists the options in use for tests/api/hardened.
#
#   stack-protector   Functions with arrays check for writes beyond the arrays when they return. Kernels are compiled
#                     without it: they run for every token, and the indices of their arrays have been checked.
#   cet               Indirect jumps and returns reach only permitted targets (x86: endbr64 and the shadow stack).
#   relro             The loader resolves all addresses at the start and then makes the table of addresses read-only.
include(CheckCCompilerFlag)
include(CheckLinkerFlag)

set(trope_hardening "")
if(NOT TROPE_SANITIZE)
  check_c_compiler_flag(-fstack-protector-strong TROPE_HAS_STACK_PROTECTOR)
  if(TROPE_HAS_STACK_PROTECTOR)
    list(APPEND trope_hardening stack-protector)
    target_compile_options(trope PRIVATE $<$<COMPILE_LANGUAGE:C>:-fstack-protector-strong>)
    foreach(source IN LISTS trope_sources)
      if(source MATCHES "^src/(fwd|bwd)/cpu/")
        set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -fno-stack-protector)
      endif()
    endforeach()
  endif()
  if(TROPE_X86)
    check_c_compiler_flag(-fcf-protection TROPE_HAS_CET)
    if(TROPE_HAS_CET)
      list(APPEND trope_hardening cet)
      target_compile_options(trope PRIVATE $<$<COMPILE_LANGUAGE:C>:-fcf-protection>)
    endif()
  endif()
  check_linker_flag(C -Wl,-z,relro,-z,now TROPE_HAS_RELRO)
  if(TROPE_HAS_RELRO)
    list(APPEND trope_hardening relro)
    target_link_options(trope PRIVATE -Wl,-z,relro,-z,now)
  endif()
endif()
