# The warnings that all of our own code is built with.
add_library(trope_warnings INTERFACE)
target_compile_options(trope_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow>)
if(TROPE_WERROR)
  target_compile_options(trope_warnings INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
