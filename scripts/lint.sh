#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks everything that needs no build; --format formats the code instead.
# clang-format comes from .venv (make lint installs it), so that the machine's
# own version does not matter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly clang_format=.venv/bin/clang-format
failed=()

# Tracked files that exist, and new ones that git does not ignore.
files() {
  git ls-files -z --cached --others --exclude-standard -- "$@" |
    while IFS= read -r -d '' file; do
      [[ ! -f $file ]] || printf '%s\0' "$file"
    done
}

check() {
  local title=$1
  shift
  if "$@"; then
    printf 'lint: %-24s ok\n' "$title"
  else
    printf 'lint: %-24s FAILED\n' "$title"
    failed+=("$title")
  fi
}

format() {
  files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 -r "$clang_format" "$@"
}

# Names the files to format; the lines are 'make format' and 'git diff' away.
check_format() {
  local output
  output=$(format --dry-run -Werror 2>&1) && return
  grep -oE '^[^:]+:[0-9]+:[0-9]+: error: .*' <<<"$output" |
    awk -F: '!seen[$1]++ { print $1 ":" $2 ": not formatted" }'
  return 1
}

check_shell() {
  files '*.sh' '.ci/run' | xargs -0 -r shellcheck
}

if [[ ! -x $clang_format ]]; then
  printf "lint: %s is missing; run 'make lint'\n" "$clang_format" >&2
  exit 1
fi
if [[ ${1:-} == --format ]]; then
  format -i
  exit
fi
check "format (make format)" check_format
check "sources" python3 scripts/check_sources.py
check "rooms" python3 scripts/check_rooms.py
check "names" python3 scripts/check_names.py
check "header index" python3 scripts/header_index.py
check "links" python3 scripts/check_links.py
check "programs" python3 scripts/check_programs.py
if command -v shellcheck >/dev/null; then
  check "shell scripts" check_shell
else
  printf 'lint: shell scripts not checked: shellcheck is not installed\n'
fi
if ((${#failed[@]} > 0)); then
  printf 'lint failed: %s\n' "${failed[*]}" >&2
  exit 1
fi
