# Tests that run in a Python interpreter, with the package of this checkout and the library of this build. An ordinary
# interpreter cannot load a sanitized library.
find_package(Python3 COMPONENTS Interpreter)
set(trope_python "") # if it stays empty, there are no such tests
if(Python3_FOUND AND BUILD_SHARED_LIBS AND NOT TROPE_SANITIZE)
  set(trope_python ${Python3_EXECUTABLE})
  if(TROPE_PYTHON)
    set(trope_python ${TROPE_PYTHON})
  elseif(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python) # made by tools/install_python
    set(trope_python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  endif()
  set(trope_jax_python ${trope_python})
  if(TROPE_JAX_PYTHON)
    set(trope_jax_python ${TROPE_JAX_PYTHON})
  elseif(EXISTS ${PROJECT_SOURCE_DIR}/.venv-jax/bin/python) # made by tools/install_python jax
    set(trope_jax_python ${PROJECT_SOURCE_DIR}/.venv-jax/bin/python)
  endif()
endif()

# trope_add_python_test(NAME LABELS ARGUMENT...) passes the arguments to the interpreter. Exit status 77 means skipped.
# Tests whose name contains "jax" run in the interpreter that has JAX.
function(trope_add_python_test name labels)
  set(interpreter ${trope_python})
  if(name MATCHES "jax")
    set(interpreter ${trope_jax_python})
  endif()
  add_test(NAME ${name} COMMAND ${interpreter} ${ARGN})
  set(environment TROPE_LIBRARY=$<TARGET_FILE:trope> PYTHONPATH=${PROJECT_SOURCE_DIR}/python
                  TORCHINDUCTOR_CACHE_DIR=${PROJECT_BINARY_DIR}/torchinductor # by default, all checkouts share one cache
                  OMP_NUM_THREADS=1) # on a busy machine, two threads of PyTorch take up to eight times the CPU time
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" SKIP_RETURN_CODE 77 ENVIRONMENT "${environment}")
endfunction()
