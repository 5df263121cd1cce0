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

# ctest does not tell the programs of tests that are not built yet; the files that
# it reads do.
mapfile -t programs < <(
  ctest --preset "$preset" "$@" --show-only=json-v1 | python3 -c '
import json, os, pathlib, re, subprocess, sys
build = pathlib.Path(sys.argv[1])
tests = {test["name"] for test in json.load(sys.stdin)["tests"]}
added = re.compile(r"^add_test\(\[=*\[(.+?)\]=*\] (.*)\)$", re.MULTILINE)
words = set()
for file in build.rglob("CTestTestfile.cmake"):
    for name, command in added.findall(file.read_text()):
        if name in tests:
            words.update(re.findall(r"\"([^\"]+)\"", command))
listing = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"],
                         check=True, capture_output=True, text=True).stdout
targets = {line.split(":")[0] for line in listing.splitlines()}
print(*sorted({os.path.basename(word) for word in words} & targets), sep="\n")
' "$PWD/build/$preset")
if [[ -n ${programs[0]:-} ]]; then
  cmake --build --preset "$preset" --parallel "${JOBS:-$(nproc)}" \
    --target "${programs[@]}"
fi
ctest --preset "$preset" "$@"
