# find_package(tensorkiln), from the folder of headers that `kiln compile --headers` wrote.
#
#   tensorkiln::host    for programs that open libraries by path, with kiln_host.h or kiln.hpp
#   tensorkiln_add_library(NAME FILE [HEADER FILE])
#                       a compiled model, .a, .o or .so, as an imported target, with the libraries that
#                       its header asks for; the header is that of the model's name beside this file

if(CMAKE_VERSION VERSION_LESS 3.12)
  message(FATAL_ERROR "tensorkiln needs CMake 3.12, and this is ${CMAKE_VERSION}")
endif()
cmake_policy(PUSH)
cmake_policy(VERSION 3.12...3.31)

set(TENSORKILN_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}")

if(NOT TARGET tensorkiln::host)
  add_library(tensorkiln::host INTERFACE IMPORTED)
  set_target_properties(tensorkiln::host PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${TENSORKILN_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
endif()

function(tensorkiln_add_library name file)
  cmake_parse_arguments(MODEL "" "HEADER" "" ${ARGN})
  if(MODEL_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tensorkiln_add_library(${name}): unknown argument ${MODEL_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT file MATCHES "\\.(a|o|so)$")
    message(FATAL_ERROR "tensorkiln_add_library(${name}): a compiled model ends with .a, .o or .so, not ${file}")
  endif()
  get_filename_component(path "${file}" ABSOLUTE)
  get_filename_component(stem "${file}" NAME_WE)
  set(header "${TENSORKILN_INCLUDE_DIR}/${stem}.h")
  if(MODEL_HEADER)
    get_filename_component(header "${MODEL_HEADER}" ABSOLUTE)
  endif()
  foreach(needed "${path}" "${header}")
    if(NOT EXISTS "${needed}")
      message(FATAL_ERROR "tensorkiln_add_library(${name}): there is no file ${needed}")
    endif()
  endforeach()

  file(STRINGS "${header}" identity REGEX "^#define [A-Z0-9_]+_H 0x[0-9a-f]+u$")
  if(NOT identity)
    message(FATAL_ERROR "tensorkiln_add_library(${name}): ${header} is no header of a compiled model")
  endif()
  file(STRINGS "${header}" line REGEX "^#define [A-Z0-9_]+_LINK \"") # empty for musl
  string(REGEX REPLACE "^[^\"]*\"(.*)\"[^\"]*$" "\\1" options "${line}")
  separate_arguments(options UNIX_COMMAND "${options}")
  get_filename_component(folder "${header}" DIRECTORY)

  if(path MATCHES "\\.so$")
    add_library(${name} SHARED IMPORTED)
    set_target_properties(${name} PROPERTIES IMPORTED_LOCATION "${path}")
  else()
    add_library(${name} INTERFACE IMPORTED)
    set_target_properties(${name} PROPERTIES INTERFACE_LINK_LIBRARIES "${path};${options}")
  endif()
  set_target_properties(${name} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${folder}")
endfunction()

cmake_policy(POP)
