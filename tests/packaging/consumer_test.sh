#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the project of docs/wrap.md with Tessera and runs it, as the page says.
#
#   consumer_test.sh installed BUILD_FOLDER   installs what is built there, moves
#                                             it, finds it as a package, and
#                                             starts two ranks with its launcher
#   consumer_test.sh subdirectory             with Tessera's sources in it; takes
#                                             as long as building the engine
#
# TESSERA_TORCH is passed on. cmake and ninja are on PATH.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(cd "$here/../.." && pwd)

case ${1:-} in
  installed)
    build=$(cd "$2" && pwd)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cmake --install "$build" --prefix "$work/first" >/dev/null
    mv "$work/first" "$work/tessera"
    tessera=$work/tessera/bin/tessera
    ranks=("$tessera" launch --nproc 2 --)
    arguments=("-DCMAKE_PREFIX_PATH=$work/tessera")
    "$tessera" --version
    "$tessera" train --help >/dev/null
    ;;
  subdirectory)
    # Always there, so that ccache knows it again.
    work=$project/build/subdirectory
    mkdir -p "$work"
    ranks=()
    arguments=(-DTESSERA_CUDA=OFF)
    ;;
  *)
    sed -n '/^# Builds/,/^set -/{/^#/s/^# \{0,1\}//p}' "$0"
    exit 2
    ;;
esac

if command -v ccache >/dev/null; then
  arguments+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
mkdir -p "$work/mine"
python3 "$here/../docs/blocks.py" write "$project/docs/wrap.md" "$work/mine"
if [[ $1 == subdirectory ]]; then
  sed -i "s|^find_package(tessera.*|add_subdirectory($project tessera)|" \
    "$work/mine/CMakeLists.txt"
fi
cmake -S "$work/mine" -B "$work/build" -G Ninja \
  -DCMAKE_BUILD_TYPE=Release "${arguments[@]}"
cmake --build "$work/build" --target mine
cd "$work/mine"
rm -rf checkpoints trained
first=$("$work/build/mine" | sed -n 's/^rank 0: loss //p')
# It resumes from the checkpoint of one rank, on two where there is a launcher.
last=$("${ranks[@]}" "$work/build/mine" | sed -n 's/.*rank 0: loss //p')
printf 'loss after 50 steps %s, after 100 %s\n' "$first" "$last"
[[ -e trained/model.safetensors ]]
[[ -d checkpoints/step-000100 ]]
awk -v first="$first" -v last="$last" 'BEGIN { exit !(last < first / 2) }'
