#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs the tests that need a GPU for a machine that has one, but no compiler.
#
#   scripts/gpu_tests.sh pack [FOLDER]   on this machine: builds the tests
#                                        labelled gpu, the benchmark and the
#                                        trainer, and packs them with what they
#                                        need into FOLDER (default
#                                        build/gpu_tests), at most 40 MiB
#   FOLDER/gpu_tests.sh run [PHASE ...]  on that machine: runs phases (default:
#                                        all; gpu_phases.py lists them); needs a
#                                        driver and the wheel torch==2.11.0
#   FOLDER/gpu_tests.sh dry-run [PHASE ...]
#                                        prints what a run would start, and
#                                        checks that it is there
#
# Environment:
#   CUDAARCHS="90"        the CUDA architectures to compile for
#   BUILD=FOLDER          where to build (default build/gpu)
#   JOBS=N                parallel compilations
#   PEER_PYTHON=3.12      pack: the version of the Python there, for DeepSpeed,
#                         which travels as a peer where pip gets it
#   PYTHON=python3        run: the Python that has torch
#   OUT=FOLDER            run: where logs and summary.json go (default gpu_logs)
set -euo pipefail

readonly max_mib=40
readonly programs=(runtime_tests sharding_tests offload_tests pipeline_tests
  engine_tests zoo_tests train_gpt2 tessera-run)
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
    --target tessera_cuda "${programs[@]}"

  local content
  content=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$content'" EXIT
  mkdir -p "$content"/{bin,lib,peers,tests/zoo/fixtures/models}
  local name path files=("$build/lib/libtessera_cuda.so")
  cp "$build/lib/libtessera_cuda.so" "$content/lib/"
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
  # The models of the zoo's smoke test.
  grep -oE '^ +"[a-z0-9_]+"' tests/zoo/family_fixtures.h | tr -d ' "' |
    tee "$content/tests/zoo/fixtures/models/packed.txt" |
    while read -r name; do
      cp -r "tests/zoo/fixtures/models/$name" "$content/tests/zoo/fixtures/models/"
    done
  strip --strip-unneeded "$content"/bin/* "$content"/lib/*

  rm -rf "$folder"
  mkdir -p "$folder"
  tar -C "$content" -cJf "$folder/files.tar.xz" .
  cp "${BASH_SOURCE[0]}" scripts/gpu_phases.py "$folder/"
  local kib
  kib=$(du -sk "$folder" | cut -f1)
  ((kib <= max_mib * 1024)) ||
    fail "$folder has $kib KiB, more than $max_mib MiB; compile for fewer architectures (CUDAARCHS)."
  printf 'gpu_tests: %s has %s KiB. On the machine with the GPU: %s/gpu_tests.sh run\n' \
    "$folder" "$kib" "$folder"
}

# phases ARGS...: unpacks, once for each pack, and runs gpu_phases.py.
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
  exec "${PYTHON:-python3}" "$folder/gpu_phases.py" "$files" "$@"
}

case ${1:-} in
  pack) pack "${@:2}" ;;
  run) phases "${@:2}" ;;
  dry-run) phases "${@:2}" --dry-run ;;
  *) fail "expected 'pack [FOLDER]', 'run [PHASE ...]' or 'dry-run [PHASE ...]', found '${1:-}'." ;;
esac
