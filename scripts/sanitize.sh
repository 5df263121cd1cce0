#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the tests with sanitizers; CPU only. Everything takes an hour
# or more; ctest's options that select tests also select what is built.
#
#   scripts/sanitize.sh asan|tsan [-R REGEX] [OPTION OF CTEST...]
#
# The sanitizers' options are in CMakePresets.json and scripts/sanitizers.
# Environment:
#   JOBS=N                parallel compilations
#   TESSERA_SKIP_PACKAGES=1, TESSERA_CACHE=FOLDER: as for scripts/setup.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:-}
if [[ $preset != asan && $preset != tsan ]]; then
  sed -n '/^# Builds/,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit 2
fi
shift

TESSERA_CUDA=OFF scripts/setup.sh setup
export PATH=$PWD/.venv/bin:$PATH
cmake --preset "$preset"

# A test's program has the name of its target; ctest does not tell those of
# programs that are not built yet, but most tests are called like theirs.
mapfile -t programs < <(
  ctest --preset "$preset" "$@" --show-only=json-v1 | python3 -c '
import json, os, subprocess, sys
build = sys.argv[1]
tests = json.load(sys.stdin)["tests"]
names = {os.path.basename(test.get("command", [test["name"]])[0])
         for test in tests}
listing = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"],
                         check=True, capture_output=True, text=True).stdout
targets = {line.split(":")[0] for line in listing.splitlines()}
print(*sorted(names & targets), sep="\n")' "$PWD/build/$preset")
if [[ -n ${programs[0]:-} ]]; then
  cmake --build --preset "$preset" --parallel "${JOBS:-$(nproc)}" \
    --target "${programs[@]}"
fi
ctest --preset "$preset" "$@"
