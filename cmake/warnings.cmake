# All code of this project is built with these warnings.
add_library(trope_warnings INTERFACE)
target_compile_options(trope_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow>)
if(TROPE_WERROR)
  target_compile_options(trope_warnings INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
