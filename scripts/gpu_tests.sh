#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs the tests that need a GPU for a machine that has one, but no compiler.
#
#   scripts/gpu_tests.sh pack [FOLDER]   on this machine: builds the tests
#                                        labelled gpu, the benchmark and the
#                                        trainer, and packs them with what they
#                                        need into FOLDER (default
#                                        build/gpu_tests)
#   scripts/gpu_tests.sh fits [FOLDER]   are FOLDER and the tracked files small
#                                        enough to travel together? Without
#                                        FOLDER: is there room left for it?
#   FOLDER/gpu_tests.sh quarter --budget SECONDS
#                                        on that machine, in a shell command of
#                                        some minutes: what is most worth knowing,
#                                        as far as the time goes
#   FOLDER/gpu_tests.sh again --budget SECONDS
#                                        after it: what failed, once more, to see
#                                        why; or larger models
#   FOLDER/gpu_tests.sh run [PHASE ...]  phases (default: all; 'list' names them)
#   FOLDER/gpu_tests.sh dry-run [PHASE ...]
#                                        prints what a run would start, and
#                                        checks that it is there
#
# That machine needs a driver and the wheel torch==2.11.0; gpu_phases.py has
# more about the last four.
#
# Environment:
#   CUDAARCHS="90"        the CUDA architectures to compile for
#   BUILD=FOLDER          where to build (default build/gpu)
#   JOBS=N                parallel compilations
#   PEER_PYTHON=3.12      pack: the version of the Python there, for DeepSpeed,
#                         which travels as a peer where pip gets it
#   PYTHON=python3        run: the Python that has torch
#   OUT=FOLDER            run: where summary.json and logs.tar.xz go (default
#                         gpu_logs)
set -euo pipefail

# A machine that is lent takes 64 MiB of tracked files and what goes with them.
readonly travel_mib=62 kit_mib=34
readonly programs=(runtime_tests sharding_tests offload_tests pipeline_tests
  engine_tests zoo_tests train_gpt2 tessera-run)
readonly read_by_names=(tests/zoo/fixtures/tokenizer_classes/cases.json)
# Came with the wheel, or with any Linux that can run it.
readonly on_every_machine='^(libtorch|libc10|libgomp|libcud|libnv|libnccl|libcu|ld-linux|libc\.|libm\.|libdl|librt|libpthread|libutil|libstdc\+\+|libgcc_s|linux-vdso)'

fail() {
  printf 'gpu_tests: %s\n' "$1" >&2
  exit 1
}

# libraries FILE...: "name path" of the libraries that the files load.
libraries() {
  ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' |
    sort -u
}

# bytes_of: of the files whose names come in, each ended by a 0.
bytes_of() {
  xargs -0 -r stat -c %s -- | awk '{ sum += $1 } END { print sum + 0 }'
}

# fits [FOLDER]: fails if FOLDER, or kit_mib in its place, and the tracked files
# are too large to travel.
fits() {
  local tree kit=$((kit_mib << 20)) name="a kit of $kit_mib MiB"
  tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && git ls-files -z |
    while IFS= read -r -d '' file; do
      [[ ! -e $file && ! -L $file ]] || printf '%s\0' "$file"
    done | bytes_of)
  if [[ -n ${1:-} ]]; then
    kit=$(find "$1" -type f -print0 | bytes_of)
    name=$1
  fi
  local message
  message=$(awk -v kit="$kit" -v tree="$tree" -v most=$travel_mib -v name="$name" \
    'BEGIN { printf "the tracked files have %.2f MiB, %s has %.2f MiB; of %d MiB, %.2f MiB are left", \
      tree / 2^20, name, kit / 2^20, most, most - (tree + kit) / 2^20 }')
  ((tree + kit <= travel_mib << 20)) ||
    fail "$message; compile for fewer architectures (CUDAARCHS), or make fixtures smaller."
  printf 'gpu_tests: %s.\n' "$message"
}

# pack_deepspeed SITE WORK: its modules, and those it needs that come with few
# installations of torch.
pack_deepspeed() {
  local site=$1 work=$2 python=.venv/bin/python wheel
  # Its set-up imports torch, and compiles nothing.
  "$python" -m pip install -q --target "$work/tools" wheel 'setuptools<82' &&
    PYTHONPATH=$work/tools DS_BUILD_OPS=0 DS_ACCELERATOR=cpu \
      "$python" -m pip wheel -q --no-deps --no-build-isolation \
      -w "$work/wheels" deepspeed==0.19.8 hjson==3.1.0 &&
    "$python" -m pip download -q --no-deps --only-binary=:all: \
      --implementation cp --python-version "${PEER_PYTHON:-3.12}" \
      --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
      -d "$work/wheels" pydantic==2.14.3 pydantic-core==2.50.4 \
      annotated-types==0.8.0 typing-inspection==0.4.5 || return
  for wheel in "$work"/wheels/*.whl; do
    "$python" -m zipfile -e "$wheel" "$site" || return
  done
}

pack() {
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  local folder=${1:-build/gpu_tests} build=${BUILD:-build/gpu}
  local archs=${CUDAARCHS:-90}
  local cmake=(cmake)
  [[ -x .venv/bin/cmake ]] && cmake=(.venv/bin/cmake) && PATH=$PWD/.venv/bin:$PATH
  "${cmake[@]}" -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DTESSERA_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=${archs// /;}" \
    -DTESSERA_BUILD_BENCHMARKS=ON
  "${cmake[@]}" --build "$build" -j "${JOBS:-$(nproc)}" \
    --target tessera_cuda tessera_shared_device "${programs[@]}"

  local content
  content=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$content'" EXIT
  mkdir -p "$content"/{bin,lib,peers,tests/zoo/fixtures/models}
  local name path files=("$build"/lib/libtessera_{cuda,shared_device}.so)
  cp "${files[@]}" "$content/lib/"
  for name in "${programs[@]}"; do
    files+=("$build/bin/$name")
    cp "$build/bin/$name" "$content/bin/"
  done
  while read -r name path; do
    if ! [[ $name =~ $on_every_machine ]]; then
      cp -L "$path" "$content/lib/$name"
    fi
  done < <(libraries "${files[@]}")
  cp benchmarks/peers/{compare_cuda,gpt2_cuda}.py "$content/peers/"
  mkdir -p "$content"/{site,work}
  if ! pack_deepspeed "$content/site" "$content/work" &>"$content/work/log"; then
    cat "$content/work/log" >&2
    printf 'gpu_tests: packing goes on without DeepSpeed, for this reason\n' >&2
  fi
  rm -rf "$content/work"
  # The models of the zoo's smoke test, which names its cases after them.
  "$build/bin/zoo_tests" --gtest_list_tests --gtest_filter='All/ZooOnCuda.*' |
    sed -n 's|^ \+[A-Za-z]*/\([a-z0-9_]*\).*|\1|p' |
    tee "$content/tests/zoo/fixtures/models/packed.txt" |
    while read -r name; do
      cp -r "tests/zoo/fixtures/models/$name" "$content/tests/zoo/fixtures/models/"
    done
  # zoo_tests names some of its tests after what is in them.
  for name in "${read_by_names[@]}"; do
    install -D -m 644 "$name" "$content/$name"
  done
  strip --strip-unneeded "$content"/bin/* "$content"/lib/*

  rm -rf "$folder"
  mkdir -p "$folder"
  tar -C "$content" -cJf "$folder/files.tar.xz" .
  mkdir "$folder/gpu_kit"
  cp scripts/gpu_kit/*.py "$folder/gpu_kit/"
  cp scripts/gpu_tests.sh scripts/gpu_phases.py "$folder/"
  fits "$folder"
  printf 'gpu_tests: on the machine with the GPU: %s/gpu_tests.sh quarter --budget SECONDS\n' \
    "$folder"
}

# phases COMMAND ARGS...: unpacks, once for each pack, and runs gpu_phases.py.
phases() {
  local folder files
  folder=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
  [[ -f $folder/files.tar.xz ]] ||
    fail "there is no files.tar.xz beside $folder/gpu_tests.sh; make it with 'pack'."
  files=${TMPDIR:-/tmp}/tessera_gpu_tests.$(cksum <"$folder/files.tar.xz" | tr ' ' .)
  if [[ ! -e $files/files.tar.xz.unpacked ]]; then
    rm -rf "$files"
    mkdir -p "$files"
    # Python has xz where tar may lack it.
    "${PYTHON:-python3}" -c 'import sys, tarfile
tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$folder/files.tar.xz" "$files"
    touch "$files/files.tar.xz.unpacked"
  fi
  exec "${PYTHON:-python3}" "$folder/gpu_phases.py" "$1" "$files" \
    --spent "$SECONDS" "${@:2}"
}

case ${1:-} in
  pack) pack "${@:2}" ;;
  fits) fits "${@:2}" ;;
  quarter | again | run | dry-run | list) phases "$@" ;;
  *) fail "expected 'pack', 'fits', 'quarter', 'again', 'run', 'dry-run' or 'list', found '${1:-}'." ;;
esac
