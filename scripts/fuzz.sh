#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes parsers with libFuzzer, starting from seeds; CPU only. Needs clang
# (apt-get install clang). The first build of targets that use LibTorch takes
# long.
#
#   scripts/fuzz.sh SECONDS [TARGET...]
#
# TARGET: safetensors, torch_file, tokenizer, tokenizer_parts, tokenizer_json,
# sentencepiece, chat_template, config_reader, train_config, model_config,
# manifest, token_documents, text_documents, image; all of them by default, one
# after the other, SECONDS each. New inputs are kept in build/fuzz/corpus and
# used by the next run; an input that fails is kept in build/fuzz/found, and the
# script exits with 1.
# Environment:
#   JOBS=N                parallel compilations
#   TESSERA_SKIP_PACKAGES=1, TESSERA_CACHE=FOLDER: as for scripts/setup.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-}
if [[ ! $seconds =~ ^[0-9]+$ ]]; then
  sed -n '/^# Fuzzes/,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit 2
fi
shift
targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
  targets=(safetensors torch_file tokenizer tokenizer_parts tokenizer_json
    sentencepiece chat_template config_reader train_config model_config manifest
    token_documents text_documents image)
fi
if ! command -v clang++ >/dev/null; then
  printf 'fuzz: clang++ is missing; install it, e.g. apt-get install clang\n' >&2
  exit 1
fi

TESSERA_CUDA=OFF scripts/setup.sh setup
export PATH=$PWD/.venv/bin:$PATH
cmake --preset fuzz
cmake --build --preset fuzz --parallel "${JOBS:-$(nproc)}" \
  --target "${targets[@]/%/_fuzz}"

mkdir -p build/fuzz/found
export LSAN_OPTIONS=suppressions=$PWD/scripts/sanitizers/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:suppressions=$PWD/scripts/sanitizers/ubsan.supp
failed=0
for target in "${targets[@]}"; do
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  while IFS= read -r seed; do
    cp "$seed" "$corpus/$(sha1sum <"$seed" | cut -c1-40)"
  done <"build/fuzz/fuzz/$target.seeds"
  printf 'fuzz: %s, %s s\n' "$target" "$seconds" >&2
  "build/fuzz/bin/${target}_fuzz" "$corpus" -max_total_time="$seconds" \
    -max_len=65536 -timeout=30 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/found/$target-" || failed=1
done
exit "$failed"
