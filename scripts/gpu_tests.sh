#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs the tests that need a GPU for a machine that has one, but no compiler.
#
#   scripts/gpu_tests.sh pack [FOLDER]   on this machine: builds the tests
#                                        labelled gpu and the benchmark, and
#                                        copies them with what they need to
#                                        FOLDER (default build/gpu_tests), at
#                                        most 40 MiB
#   scripts/gpu_tests.sh run FOLDER      on that machine: runs all of it; needs
#                                        a driver and the wheel torch==2.11.0
#
# Environment:
#   CUDAARCHS="90"        the CUDA architectures to compile for
#   BUILD=FOLDER          where to build (default build/gpu)
#   JOBS=N                parallel compilations
#   PYTHON=python3        run: the Python that has torch
#   GPU_TESTS=PATTERN     run: only the test files that match (a regular
#                         expression)
#   GPU_BENCHMARK=0       run: no benchmark
#   GPU_TEST_SECONDS=N    run: limit for one test file (default 900)
set -euo pipefail

readonly max_mib=40
readonly programs=(runtime_tests sharding_tests offload_tests pipeline_tests engine_tests)
# Files of tests; the program of a file is its room's.
readonly tests=(
  runtime/comm/communicator_gpu_test.cpp
  runtime/kernels/update_gpu_test.cpp
  runtime/kernels/pack_gpu_test.cpp
  runtime/kernels/counter_random_gpu_test.cpp
  sharding/move_module_gpu_test.cpp
  offload/shard_store_gpu_test.cpp
  pipeline/pipeline_gpu_test.cpp
  engine/activation_offload_gpu_test.cpp
  engine/optim/placement_gpu_test.cpp
  engine/cuda_training_gpu_test.cpp
  engine/trainer/trainer_gpu_test.cpp
  engine/matrix_test.cpp)
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

pack() {
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  local folder=${1:-build/gpu_tests} build=${BUILD:-build/gpu}
  local archs=${CUDAARCHS:-90}
  local cmake=(cmake)
  [[ -x .venv/bin/cmake ]] && cmake=(.venv/bin/cmake) && PATH=$PWD/.venv/bin:$PATH
  "${cmake[@]}" -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DTESSERA_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=${archs// /;}" \
    -DTESSERA_BUILD_EXAMPLES=OFF -DTESSERA_BUILD_BENCHMARKS=ON
  "${cmake[@]}" --build "$build" -j "${JOBS:-$(nproc)}" \
    --target tessera_cuda train_gpt2 "${programs[@]}"

  rm -rf "$folder"
  mkdir -p "$folder"/{bin,lib,peers}
  local name path files=("$build/lib/libtessera_cuda.so")
  cp "$build/lib/libtessera_cuda.so" "$folder/lib/"
  for name in "${programs[@]}" train_gpt2; do
    files+=("$build/bin/$name")
    cp "$build/bin/$name" "$folder/bin/"
  done
  while read -r name path; do
    if ! [[ $name =~ $on_every_machine ]]; then
      cp -L "$path" "$folder/lib/$name"
    fi
  done < <(libraries "${files[@]}")
  cp benchmarks/peers/{compare_cuda,gpt2_cuda}.py "$folder/peers/"
  cp "${BASH_SOURCE[0]}" "$folder/gpu_tests.sh"
  strip --strip-unneeded "$folder"/bin/* "$folder"/lib/*

  local kib
  kib=$(du -sk "$folder" | cut -f1)
  ((kib <= max_mib * 1024)) ||
    fail "$folder has $kib KiB, more than $max_mib MiB; compile for fewer architectures (CUDAARCHS)."
  printf 'gpu_tests: %s has %s KiB. On the machine with the GPU: %s/gpu_tests.sh run %s\n' \
    "$folder" "$kib" "$folder" "$folder"
}

# Prints the folders with the libraries of the wheel and those it depends on.
wheel_folders() {
  "${PYTHON:-python3}" - <<'PYTHON'
import glob
import os

import torch

root = os.path.dirname(torch.__file__)
version = torch.__version__.split("+")[0]
assert version == "2.11.0", f"torch is {version}; the tests need 2.11.0"
nvidia = sorted(glob.glob(os.path.join(root, "..", "nvidia", "*", "lib")))
print(":".join([os.path.join(root, "lib"), *nvidia]))
PYTHON
}

run() {
  local folder
  folder=$(realpath "$1")
  local wheel
  wheel=$(wheel_folders) || fail "${PYTHON:-python3} has no torch 2.11.0."
  export LD_LIBRARY_PATH=$folder/lib:$wheel${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv || true
  local missing
  missing=$(ldd "$folder"/bin/* "$folder"/lib/*.so 2>&1 |
    grep -E 'not found' | sort -u || true)
  [[ -z $missing ]] || fail "this machine lacks:"$'\n'"$missing"

  local name failed=() output
  output=$(mktemp)
  for name in "${tests[@]}"; do
    [[ $name =~ ${GPU_TESTS:-.} ]] || continue
    printf '== %s\n' "$name"
    if ! TESSERA_TEST_DEVICE=cuda \
      timeout "${GPU_TEST_SECONDS:-900}" \
      "$folder/bin/${name%%/*}_tests" "--file=$name" >"$output" 2>&1; then
      failed+=("$name")
      tail -n 60 "$output"
    elif grep -q 'no CUDA device' "$output"; then
      failed+=("$name (skipped: no CUDA device)")
    fi
    grep -E '^\[ +(PASSED|FAILED|SKIPPED) +\] [0-9]+ test' "$output" || true
  done
  rm -f "$output"
  if [[ ${GPU_BENCHMARK:-1} != 0 ]]; then
    "${PYTHON:-python3}" "$folder/peers/compare_cuda.py" \
      --program "$folder/bin/train_gpt2" || failed+=(benchmark)
    # 7B parameters, whose state does not fit beside them on most devices.
    "${PYTHON:-python3}" "$folder/peers/compare_cuda.py" \
      --program "$folder/bin/train_gpt2" --rounds 1 --steps 3 --warmup 2 \
      --layers 32 --width 4096 --heads 32 --batch 4 \
      --engine "lazy=1 optimizer.placement=host" \
      tessera fsdp2-offload || failed+=("offload benchmark")
  fi
  if ((${#failed[@]} > 0)); then
    printf 'gpu_tests: failed: %s\n' "${failed[@]}" >&2
    return 1
  fi
  printf 'gpu_tests: all passed\n'
}

case ${1:-} in
  pack) pack "${@:2}" ;;
  run) run "${2:?run needs the folder that pack created}" ;;
  *) fail "expected 'pack [FOLDER]' or 'run FOLDER', found '${1:-}'." ;;
esac
