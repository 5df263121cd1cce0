# SPDX-License-Identifier: Apache-2.0
# What the commands of a page's shell blocks do when the page is tested. It is
# sourced before a block. From the caller:
#
#   TESSERA  the program      SOURCE  the project      BUILD  its build folder
#   MODE     check: tessera checks its arguments; run: it runs
#   SHORT    in run: added to `tessera train`
# shellcheck shell=bash

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# tessera ARGUMENTS... of a page.
tessera() {
  local -a own=()
  if [[ ${1:-} == launch ]]; then
    while (($# > 0)) && [[ $1 != -- ]]; do
      own+=("$1")
      shift
    done
    (($# > 1)) || fail "tessera launch needs a program after --"
    if [[ $MODE == run ]]; then
      [[ $2 != tessera ]] || set -- -- "$TESSERA" "${@:3}"
      # shellcheck disable=SC2086 # words
      [[ ${3:-} != train ]] || set -- "$@" $SHORT
      "$TESSERA" "${own[@]}" "$@"
    else
      "$TESSERA" "${own[@]}" --check "$@" || exit
      shift
      "$@"
    fi
  elif [[ $MODE == run ]]; then
    # shellcheck disable=SC2086 # words
    [[ ${1:-} != train ]] || set -- "$@" $SHORT
    "$TESSERA" "$@" || exit
  else
    "$TESSERA" "$@" --check || exit
    [[ $1 != train ]] || made_run "${@:2}"
  fi
}

# made_run CONFIG KEY=VALUE...: the run folder, for the commands that follow.
made_run() {
  local folder
  folder=$(printf '%s\n' "${@:2}" | sed -n 's/^output.folder=//p')
  [[ -z $folder || $folder == /* ]] || {
    mkdir -p "$folder/model"
    tee "$folder/config.json" <"$1" >"$folder/model/config.json"
  }
}

# Launchers of others: what they start is checked.
started() {
  while (($# > 0)) && [[ $1 != tessera && $1 != PROGRAM ]]; do
    shift
  done
  (($# > 0)) || fail "no program in this command"
  "$@"
}
srun() { started "$@"; }
mpirun() { started "$@"; }
torchrun() { started "$@"; }
PROGRAM() { :; }
nice() { # -n NUMBER COMMAND...
  "${@:3}"
}

# value_of OPTION ARGUMENTS...: the argument after it, or after its "=".
value_of() {
  local option=$1
  shift
  while (($# > 0)); do
    case $1 in
      "$option") printf '%s\n' "$2" ;;
      "$option"=*) printf '%s\n' "${1#*=}" ;;
    esac
    shift
  done
}

docker() {
  local file
  case $1 in
    build)
      file=$(value_of -f "$@")
      [[ -e $SOURCE/$file ]] || fail "docker build: there is no $file"
      ;;
    run)
      while (($# > 0)) && [[ $1 != tessera && $1 != tessera:* ]]; do
        shift
      done
      tessera "${@:2}"
      ;;
    *) fail "docker $1" ;;
  esac
}

# The project's own tools: their targets, presets and files exist.
make() {
  command make -n -C "$SOURCE" "$@" >/dev/null || fail "make $*"
}

cmake() {
  local name
  for name in $(value_of --preset "$@"); do
    grep -q "\"name\": \"$name\"" "$SOURCE/CMakePresets.json" ||
      fail "cmake: there is no preset '$name'"
  done
  for name in $(value_of --target "$@"); do
    exists_program "$name"
  done
  for name in "$@"; do
    [[ $name != -DTESSERA_* ]] || {
      name=${name#-D}
      grep -rqw "${name%%=*}" "$SOURCE/CMakeLists.txt" "$SOURCE/cmake" ||
        fail "cmake: there is no option $name"
    }
  done
}

ctest() {
  # Another ctest runs this test: it must not start one in the same folder.
  local name
  for name in $(value_of -R "$@"); do
    grep -qE "^add_test\(\[?=?\[?[a-z_]*$name" "$BUILD/tests/CTestTestfile.cmake" ||
      fail "ctest: there is no test like '$name'"
  done
}

# A program that the project builds: of tests, of tools, an example, a benchmark.
exists_program() {
  grep -qwE "tessera_tests\(${1%_tests}|$1" \
    "$SOURCE"/{tests,tools,examples,benchmarks}/CMakeLists.txt ||
    fail "no program '$1' is built"
}

# built NAME ARGUMENTS...: build/release/bin/NAME of a block.
built() {
  local name=$1 file
  shift
  exists_program "$name"
  for file in "$@"; do
    case $file in
      --file=*) [[ -e $SOURCE/tests/${file#--file=} ]] || fail "$name: no $file" ;;
    esac
  done
}

# Commands of others, which download, need a device, or are not installed here.
for command in hf git apt-get nc nvidia-smi /tmp/hf/bin/pip /tmp/hf/bin/python; do
  eval "$command() { :; }"
done
if [[ $MODE == check ]]; then
  python3() {
    if [[ $1 == *.py ]]; then
      [[ -e $1 || $1 == evaluate-v2.0.py ]] || fail "there is no $1"
    elif [[ $1 == -c ]]; then
      command python3 "$@"
    fi
  }
  ls() { :; }
fi
