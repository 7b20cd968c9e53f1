# The CTest tests of trope_multigpu. All of them run on the CPU, mostly with four ranks, and need no GPU.
if(NOT TARGET trope_multigpu)
  return()
endif()
find_package(Python3 COMPONENTS Interpreter)
set(multigpu_directory ${CMAKE_CURRENT_LIST_DIR})
set(multigpu_mpirun none)
if(TROPE_MPI_FOUND)
  set(multigpu_mpirun ${MPIEXEC_EXECUTABLE})
endif()

# multigpu_run(name COMMAND...)
function(multigpu_run name)
  add_test(NAME multigpu_${name} COMMAND ${ARGN})
  set_tests_properties(multigpu_${name} PROPERTIES LABELS multigpu SKIP_RETURN_CODE 77 TIMEOUT 600
      ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
endfunction()

# multigpu_script(name SCRIPT VARIABLE=VALUE...): runs a script that uses program.py.
function(multigpu_script name script)
  if(NOT Python3_FOUND OR NOT trope_multigpu_has_json)
    multigpu_run(${name} sh -c "echo 'skipped: Python 3 or cJSON was not found when this build was configured'; exit 77")
    return()
  endif()
  multigpu_run(${name} ${CMAKE_COMMAND} -E env ${ARGN} ${Python3_EXECUTABLE} -B ${multigpu_directory}/${script}
               $<TARGET_FILE:trope_multigpu> ${multigpu_mpirun})
endfunction()

if(TROPE_MPI_FOUND)
  multigpu_run(mpi ${multigpu_mpirun} --oversubscribe -n 4 $<TARGET_FILE:trope_multigpu> --device cpu)
elseif(NOT TROPE_SANITIZE) # builds with sanitizers do not use MPI
  multigpu_run(mpi sh -c "echo 'skipped: MPI was not found when this build was configured'; exit 77")
endif()
set(multigpu_only "")
if(TROPE_SANITIZE) # the cases of the other dtypes run the same code of trope_multigpu
  set(multigpu_only --only /bf16)
endif()
foreach(ranks 1 2 4 6 8)
  multigpu_run(threads_${ranks} trope_multigpu --device cpu --ranks ${ranks} --bytes 0 ${multigpu_only})
endforeach()
multigpu_run(simulation trope_multigpu --simulate)
multigpu_script(commands commands.py)
multigpu_script(failures failures.py)
# These tests take minutes in total and do not test the library itself. tools/test runs the shorter ones.
function(multigpu_long)
  foreach(name IN LISTS ARGN)
    set_property(TEST multigpu_${name} APPEND PROPERTY LABELS long)
  endforeach()
endfunction()
multigpu_long(threads_6 threads_8 failures)
# The phases of this test have time limits, which a run beside another test could exceed.
set_tests_properties(multigpu_failures PROPERTIES RUN_SERIAL ON)
foreach(mistake gather axis reduce)
  multigpu_script(break_${mistake} breaks.py TROPE_MULTIGPU_BREAK=${mistake}
                  "TROPE_MULTIGPU_ONLY=norm-after/bf16 norm-token/bf16")
endforeach()
foreach(mistake rank layout chunk sin cu_seqlens local bit)
  multigpu_script(break_${mistake} breaks.py TROPE_MULTIGPU_BREAK=${mistake})
  if(NOT mistake MATCHES "^(rank|bit)$")
    multigpu_long(break_${mistake})
  endif()
endforeach()
if(TROPE_MPI_FOUND)
  multigpu_script(break_rank_mpi breaks.py TROPE_MULTIGPU_BREAK=rank TROPE_MULTIGPU_WAY=mpi)
endif()

# Builds everything that `prove` runs, for a build folder that will be copied to another machine.
add_custom_target(multigpu_prove DEPENDS trope_multigpu trope_tool)
