# SPDX-License-Identifier: Apache-2.0
"""Writes fixtures that are JSON in one line."""

import json


def write(path, value):
    path.write_text(
        json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n",
        encoding="utf-8")
    print(path, path.stat().st_size, "bytes")
