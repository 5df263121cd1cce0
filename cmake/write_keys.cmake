# SPDX-License-Identifier: Apache-2.0
# Writes the table of keys in configs/README.md and docs/config.schema.json from
# what PROGRAM, tessera-run, prints, where they differ.
cmake_minimum_required(VERSION 3.25)

function(print_keys option to)
  execute_process(
    COMMAND ${PROGRAM} keys ${option}
    OUTPUT_VARIABLE text
    COMMAND_ERROR_IS_FATAL ANY)
  set(${to} "${text}" PARENT_SCOPE)
endfunction()

function(write_if_different file text)
  file(READ ${file} before)
  if(NOT "${text}" STREQUAL "${before}")
    message(STATUS "written: ${file}")
    file(WRITE ${file} "${text}")
  endif()
endfunction()

print_keys(--schema schema)
write_if_different(${SOURCE}/docs/config.schema.json "${schema}")

print_keys(--markdown table)
file(READ ${SOURCE}/configs/README.md page)
set(mark "<!-- tessera keys --markdown -->\n")
string(FIND "${page}" "${mark}" begin)
string(LENGTH "${mark}" length)
math(EXPR begin "${begin} + ${length}")
string(SUBSTRING "${page}" 0 ${begin} head)
string(SUBSTRING "${page}" ${begin} -1 rest)
string(FIND "${rest}" "<!-- end -->" end)
string(SUBSTRING "${rest}" ${end} -1 tail)
write_if_different(${SOURCE}/configs/README.md "${head}${table}${tail}")
