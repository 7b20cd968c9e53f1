# For tests that check the examples and outputs in the README.

# trope_read_readme(TEXT) sets TEXT to the README, or to an empty string if there is no README. CMake configures again when
# the README changes.
function(trope_read_readme text)
  set(readme ${PROJECT_SOURCE_DIR}/README.md)
  set(content "")
  if(EXISTS ${readme})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${readme})
    file(READ ${readme} content)
  endif()
  set(${text} "${content}" PARENT_SCOPE)
endfunction()

# trope_expect_output(TEST OUTPUT): the test passes if its output contains OUTPUT, taken literally.
function(trope_expect_output test output)
  string(REGEX REPLACE "([][+.*()^$|?\\])" "\\\\\\1" pattern "${output}")
  set_tests_properties(${test} PROPERTIES PASS_REGULAR_EXPRESSION "${pattern}")
endfunction()
