#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes tokens of the source of Python's standard library, as it is on this
# machine, and trains a small GPT on them.
#
#   examples/python_gpt/train.sh [KEY=VALUE...]   keys of
#                                                 configs/train_gpt_python.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH=$PWD/build/release/bin:$PATH

library=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
# Some modules are empty: --skip-bad.
tessera tokenize --model examples/data/python_gpt \
  --input "$library/*.py" "$library/*/*.py" \
  --output runs/python_source --split 0.98,0.02 --skip-bad
exec tessera train configs/train_gpt_python.json "$@"
