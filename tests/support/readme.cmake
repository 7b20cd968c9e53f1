# For tests that what the README shows is true.

# trope_read_readme(TEXT): the README, empty where there is none. When it changes, all is configured anew.
function(trope_read_readme text)
  set(readme ${PROJECT_SOURCE_DIR}/README.md)
  set(content "")
  if(EXISTS ${readme})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${readme})
    file(READ ${readme} content)
  endif()
  set(${text} "${content}" PARENT_SCOPE)
endfunction()

# trope_expect_output(TEST OUTPUT): passes if it prints just this, as it stands there.
function(trope_expect_output test output)
  string(REGEX REPLACE "([][+.*()^$|?\\])" "\\\\\\1" pattern "${output}")
  set_tests_properties(${test} PROPERTIES PASS_REGULAR_EXPRESSION "${pattern}")
endfunction()
