#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is too slow for each change: run it by night, or before a release.
#
#   scripts/nightly.sh [PART...]
#
# Without parts all of them run, in this order; one that fails does not stop the
# next, and the last lines say which did.
#   benchmarks  compiles the benchmarks; needs libbenchmark-dev
#   dev         compiles each file by itself, warnings are errors, runs the tests
#   tidy        clang-tidy over all sources
#   asan, tsan  the tests under sanitizers
#   fuzz        each fuzz target for 10 minutes; needs clang
#   mutations   mistakes in the sources, each of which a test must notice
#   soak        the tests that take hours
# Environment: as for scripts/setup.sh.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

readonly parts=(benchmarks dev tidy asan tsan fuzz mutations soak)

build_preset() {  # PRESET OPTION...
  TESSERA_CUDA=OFF scripts/setup.sh setup &&
    cmake --preset "$1" "${@:2}" &&
    cmake --build --preset "$1" ${JOBS:+-j "$JOBS"}
}

run_part() {  # PART
  case $1 in
    benchmarks) build_preset release -DTESSERA_BUILD_BENCHMARKS=ON ;;
    dev) build_preset dev && ctest --preset dev ;;
    tidy) scripts/tidy.sh ;;
    asan | tsan) scripts/sanitize.sh "$1" ;;
    fuzz) scripts/fuzz.sh 600 ;;
    mutations) make build && python3 tests/drivers/mutations.py ;;
    soak) make build && ctest --preset release -C soak -L soak ;;
  esac
}

for part in "$@"; do
  if [[ " ${parts[*]} " != *" $part "* ]]; then
    printf "nightly: there is no part '%s'; there are %s\n" "$part" "${parts[*]}" >&2
    exit 2
  fi
done
export PATH=$PWD/.venv/bin:$PATH
failed=()
(($# > 0)) || set -- "${parts[@]}"
for part in "$@"; do
  printf '\nnightly: %s\n' "$part"
  run_part "$part" || failed+=("$part")
done
printf '\nnightly: %s s; failed: %s\n' "$SECONDS" "${failed[*]:-none}"
exit $((${#failed[@]} > 0))
