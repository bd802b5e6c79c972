# How attnd's own targets are made: the same warnings, sanitizers and include root for all.
add_library(attnd_options INTERFACE)
target_include_directories(attnd_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(attnd_options INTERFACE -Wall -Wextra -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(attnd_options INTERFACE -Wthread-safety)
endif()
if(ATTND_SANITIZE)
  add_compile_options(-fsanitize=${ATTND_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ATTND_SANITIZE})
endif()
if(ATTND_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

if(BUILD_SHARED_LIBS)
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)  # one folder, as a bundle has it
endif()

# attnd_library(NAME SOURCES ... DEPS ...): a static library, or with BUILD_SHARED_LIBS a shared one. DEPS are public.
function(attnd_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:attnd_options> ${ARG_DEPS})
endfunction()

# attnd_binary(NAME SOURCES ... DEPS ...): a program in build/<preset>/bin.
function(attnd_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE attnd_options ${ARG_DEPS})
endfunction()

# attnd_test(NAME SOURCES ... DEPS ... [LABELS ...]): a GoogleTest program, run by ctest as one test a suite file.
function(attnd_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE attnd_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  # What is tested is optimised; of a test, compiling takes longer than running.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# attnd_pytest(NAME PATH [LABELS ...] [TIMEOUT ...]): a pytest file, with the distribution's Python and ATTND_BIN_DIR set.
function(attnd_pytest name path)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_test(NAME ${name}
    COMMAND /usr/bin/python3 -m pytest -q -p no:cacheprovider ${CMAKE_SOURCE_DIR}/${path}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "ATTND_BIN_DIR=${CMAKE_BINARY_DIR}/bin;ATTND_BUILD_DIR=${CMAKE_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1")
endfunction()
