#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a packed kit where there is nothing but what it may rely on: Debian 13, a
# Python, the wheel of torch, and an nvidia-smi that finds an H100. As root, with
# debootstrap; the first time takes minutes and 6 GB.
#
#   scripts/gpu_bare_machine.sh KIT COMMAND [ARGUMENT ...]
#   scripts/gpu_bare_machine.sh build/gpu_tests dry-run
#
# COMMAND is one of KIT/gpu_tests.sh. What it writes is in ROOT/kit/out.
#
# Environment:
#   BARE_ROOT=FOLDER    the root file system (default /tmp/tessera_bare)
#   BARE_PYTHON=FOLDER  a Python to copy there, to the same path; the prefix of
#                       one that pyenv has built, for example (default: Debian's)
set -euo pipefail

(($# >= 2)) || {
  sed -n '3,10p' "$0" >&2
  exit 2
}
readonly kit=$1 root=${BARE_ROOT:-/tmp/tessera_bare}
python=/opt/torch/bin/python
if [[ -n ${BARE_PYTHON:-} ]]; then
  python=$BARE_PYTHON/bin/python3
fi

settings=("PYTHON=$python" OUT=/kit/out)
for name in PIP_CERT PIP_INDEX_URL http_proxy https_proxy; do
  [[ -z ${!name:-} ]] || settings+=("$name=${!name}")
done

# bare COMMAND...: in the bare machine.
bare() {
  # shellcheck disable=SC2016  # for the shell there
  unshare --mount bash -c 'mount -t proc proc "$0/proc" &&
    mount --rbind /dev "$0/dev" && mount --rbind /sys "$0/sys" &&
    exec chroot "$0" env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin \
    LANG=C.UTF-8 "$@"' \
    "$root" "${settings[@]}" "$@"
}

if [[ ! -e $root/usr/local/bin/nvidia-smi ]]; then
  packages=ca-certificates
  if [[ -n ${BARE_PYTHON:-} ]]; then
    packages+=,libbz2-1.0,libffi8,liblzma5,libssl3t64,zlib1g # its modules
  else
    packages+=,python3-venv
  fi
  rm -rf "$root"
  debootstrap --variant=minbase --include="$packages" trixie "$root"
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  if [[ -n ${BARE_PYTHON:-} ]]; then
    mkdir -p "$root$(dirname "$BARE_PYTHON")"
    cp -a "$BARE_PYTHON" "$root$BARE_PYTHON"
  else
    bare python3 -m venv /opt/torch
  fi
  bare "$python" -m pip install -q torch==2.11.0
  printf '%s\n' '#!/bin/sh' 'case $* in' \
    '  *memory.total*) echo 81559 ;;' '  *) echo "GPU 0: NVIDIA H100 80GB HBM3" ;;' \
    'esac' >"$root/usr/local/bin/nvidia-smi"
  chmod +x "$root/usr/local/bin/nvidia-smi"
fi
rm -rf "$root/kit"
cp -r "$kit" "$root/kit"
bare /kit/gpu_tests.sh "${@:2}"
