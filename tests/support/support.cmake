# Code that several tests share: the reference, random calls, comparisons. Link trope_test_support to use it.
include_guard(GLOBAL)
add_library(trope_test_support STATIC EXCLUDE_FROM_ALL
    ${CMAKE_CURRENT_LIST_DIR}/compare.c
    ${CMAKE_CURRENT_LIST_DIR}/config.c
    ${CMAKE_CURRENT_LIST_DIR}/config_angles.c
    ${CMAKE_CURRENT_LIST_DIR}/config_build.c
    ${CMAKE_CURRENT_LIST_DIR}/config_norms.c
    ${CMAKE_CURRENT_LIST_DIR}/config_positions.c
    ${CMAKE_CURRENT_LIST_DIR}/config_tensors.c
    ${CMAKE_CURRENT_LIST_DIR}/guarded.c
    ${CMAKE_CURRENT_LIST_DIR}/number.c
    ${CMAKE_CURRENT_LIST_DIR}/reference.c
    ${CMAKE_CURRENT_LIST_DIR}/reference_angles.c
    ${CMAKE_CURRENT_LIST_DIR}/reference_gradient.c
    ${CMAKE_CURRENT_LIST_DIR}/reference_norm.c
    ${CMAKE_CURRENT_LIST_DIR}/reference_positions.c
    ${CMAKE_CURRENT_LIST_DIR}/token_sums.c)
target_include_directories(trope_test_support PUBLIC ${PROJECT_SOURCE_DIR}/tests)
target_compile_options(trope_test_support PRIVATE -ffp-contract=off)
target_link_libraries(trope_test_support PUBLIC trope::trope m PRIVATE trope_warnings)
set_target_properties(trope_test_support PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON)
