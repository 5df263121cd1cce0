#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over the C++ sources that the dev build compiles, or over the
# given files. Takes seconds per file without LibTorch, half a minute with it.
#
#   scripts/tidy.sh [FILE...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly clang_tidy=${CLANG_TIDY:-clang-tidy}
readonly database=build/dev/compile_commands.json
# GCC's precompiled headers mean nothing to clang: the header is included as
# text in their place.
readonly plain=build/tidy

if ! command -v "$clang_tidy" >/dev/null; then
  printf 'tidy: %s was not found.\n' "$clang_tidy" >&2
  printf '  Debian: apt-get install clang-tidy; or set CLANG_TIDY.\n' >&2
  exit 1
fi
if [[ ! -e $database ]]; then
  TESSERA_CUDA=OFF scripts/setup.sh setup
  PATH=$PWD/.venv/bin:$PATH cmake --preset dev
fi

mkdir -p "$plain"
mapfile -t files < <(python3 - "$database" "$plain" "$@" <<'PYTHON'
import json
import pathlib
import re
import sys

database, plain, *wanted = sys.argv[1:]
root = pathlib.Path.cwd()
wanted = {str((root / name).resolve()) for name in wanted}
entries = []
for entry in json.load(open(database)):
    file = pathlib.Path(entry["file"])
    ours = root in file.parents and root / "build" not in file.parents
    if file.suffix != ".cpp" or not ours:
        continue
    if wanted and str(file) not in wanted:
        continue
    command = re.sub(r" -(Winvalid-pch|fpch-preprocess)\b", "", entry["command"])
    # The launcher (ccache and its settings) ends where the compiler begins.
    command = re.sub(r"^.*?(\S*(?:c\+\+|g\+\+|clang\+\+)\S* )", r"\1", command)
    entry["command"] = command
    entries.append(entry)
    print(file)
pathlib.Path(plain, "compile_commands.json").write_text(json.dumps(entries))
PYTHON
)
if ((${#files[@]} == 0)); then
  printf 'tidy: the build does not compile any of these: %s\n' "$*" >&2
  exit 1
fi
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" "$clang_tidy" -p "$plain" --quiet
