#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the blocks of Markdown pages that are not C++, in the order of each
page, in a folder of its own; see blocks.py.

    run_page.py --build BUILD_FOLDER PAGE...

Also checks the keys of configurations that pages name in code font.
"""

import argparse
import ast
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]

import blocks  # noqa: E402

# What stands for a configuration in commands, and for a rank's Slurm step.
CONFIG = "configs/finetune_minilm.json"
ENVIRONMENT = {
    "SLURM_CPUS_PER_TASK": "12",
    "TESSERA": "/opt/tessera",
    "WORLD_SIZE": "2",
    "RANK": "0",
}
KEY_TABLE = "configs/README.md"
# A model of any size fits.
PLAN_CONFIG = "configs/train_gpt_13b.json"
PATH_OF_PROGRAM = re.compile(r"(?<![\w./])(?:build/release/bin|build)/([\w-]+)(?![\w/.-])")
PATH_OF_SCRIPT = re.compile(r"(?<![\w./])((?:scripts|benchmarks/peers|tests)/[\w/]+\.(?:py|sh))")
KEY = re.compile(r"(?<![\w./-])([a-z_]\w*(?:\.[a-z_]\w*)+)=")
INLINE_KEY = re.compile(r"`([a-z_]\w*(?:\.[a-z_]\w*)+)(?:=[^`]*)?`")
# Endings that make a name one of a file.
FILE_ENDINGS = ("bin", "json", "jsonl", "safetensors", "md", "py", "pt", "idx", "h", "cpp")


class Failure(Exception):
    pass


class PageTest:
    def __init__(self, build, page):
        self.build = pathlib.Path(build).resolve()
        self.program = self.build / "bin" / "tessera"
        self.page = page
        self.folder = None
        self.known_keys = None

    def command(self, arguments, where):
        done = subprocess.run(
            [str(self.program), *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise Failure(f"{where}: tessera {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def keys(self):
        """Keys and sections of configurations."""
        if self.known_keys is None:
            # Another test compares the table with the program's.
            table = (SOURCE / KEY_TABLE).read_text()
            names = set(re.findall(r"^\| `([^`]+)`", table, re.M))
            names = {name.replace("[]", "") for name in names}
            self.known_keys = {
                ".".join(name.split(".")[: n + 1]) for name in names for n in range(name.count(".") + 1)
            }
        return self.known_keys

    def check_keys(self, names, where):
        sections = {key.split(".")[0] for key in self.keys() if "." in key}
        for name in names:
            first, last = name.split(".")[0], name.split(".")[-1]
            if first in sections and last not in FILE_ENDINGS and name not in self.keys():
                raise Failure(f"{where}: there is no key '{name}'")

    def prepare(self):
        """The project's folders, and places of its own for what blocks write."""
        for path in SOURCE.iterdir():
            if path.name not in {"build", "models", "runs", "data", ".git"}:
                (self.folder / path.name).symlink_to(path)
        for name in ("models", "runs", "data", "shared"):
            (self.folder / name).mkdir()
        if (SOURCE / "models").is_dir():
            for path in (SOURCE / "models").iterdir():
                (self.folder / "models" / path.name).symlink_to(path.resolve())
        # Its paths are relative to configs/.
        config = (SOURCE / CONFIG).read_text().replace('"../', '"')
        (self.folder / "CONFIG").write_text(config)

    def write(self, name, text):
        """A file of the page's own, in place of the project's link."""
        path = self.folder / name
        if path.is_symlink():
            path.unlink()
        path.write_text(text)
        return path

    # One function for each language.

    def sh(self, block):
        if "syntax" in block.marks:
            mode = "syntax"
        else:
            mode = "run" if "run" in block.marks else "check"
        self.check_keys(KEY.findall(block.text), block.place)
        prelude = [f". {HERE}/stubs.sh"]
        for name in sorted(set(PATH_OF_PROGRAM.findall(block.text)) - {"release"}):
            if mode == "check":
                prelude.append(f'build/release/bin/{name}() {{ built {name} "$@"; }}')
                prelude.append(f"build/{name}() {{ :; }}")
            elif name != "release":
                (self.folder / "build/release").mkdir(parents=True, exist_ok=True)
                link = self.folder / "build/release/bin"
                if not link.exists():
                    link.symlink_to(self.build / "bin")
        for path in sorted(set(PATH_OF_SCRIPT.findall(block.text))):
            if not (SOURCE / path).exists():
                raise Failure(f"{block.place}: there is no {path}")
            if mode == "check":
                prelude.append(f"{path}() {{ :; }}")
        script = "\n".join([*prelude, f"# {block.place}", block.text])
        arguments = ["bash", "-n"] if mode == "syntax" else ["bash", "-euo", "pipefail"]
        environment = dict(os.environ) | ENVIRONMENT
        if mode == "run":
            for name in ("RANK", "WORLD_SIZE"):
                environment.pop(name)
        environment |= {
            "TESSERA": str(self.program),
            "SOURCE": str(SOURCE),
            "BUILD": str(self.build),
            "MODE": mode,
            "SHORT": block.marks.get("short", ""),
            "SLURM_SUBMIT_DIR": str(self.folder),
        }
        done = subprocess.run(
            [*arguments, "-c", script],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise Failure(
                f"{block.place}: the block ends with {done.returncode}\n"
                f"{block.text}{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )

    def json(self, block):
        if "rows" in block.marks:
            for row in block.text.strip().split("\n"):
                json.loads(row)
            return
        text = block.text.strip()
        value = json.loads(text if text.startswith("{") else "{" + text + "}")
        if "model" in block.marks:
            path = self.write("a_model.json", json.dumps(value))
            self.command(
                ["plan", PLAN_CONFIG, f"model.config={path}", "training.accumulate=1",
                 "training.batch_size=1", "--devices", "1", "--device-memory", "1000GiB",
                 "--as-given", "--check"],
                block.place,
            )  # fmt: skip
            return
        if base := block.marks.get("config"):
            value = {"extends": str(SOURCE / base), **value}
        elif "task" not in value:
            raise Failure(f"{block.place}: this is no configuration (`task`); mark what it is")
        path = self.write(block.marks.get("file", "a_config.json"), json.dumps(value))
        self.command(["train", str(path), *block.marks.get("with", "").split(), "--check"], block.place)
        # For commands of the page that take the run's folder.
        if run := value.get("output", {}).get("folder"):
            for name in (f"{run}/config.json", f"{run}/model/config.json"):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                self.write(name, json.dumps(value))

    def python(self, block):
        ast.parse(block.text, block.place)

    def yaml(self, block):
        reader = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)"
        done = subprocess.run(
            ["/usr/bin/python3", "-c", reader], input=block.text, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise Failure(f"{block.place}: {done.stderr}")

        def commands(value):
            if isinstance(value, dict):
                yield from ([value["args"]] if "args" in value else [])
                value = list(value.values())
            if isinstance(value, list):
                for item in value:
                    yield from commands(item)

        for arguments in commands(json.loads(done.stdout)):
            # The image's program is tessera, and its configuration /shared's.
            words = [word.replace("/shared/config.json", "CONFIG") for word in map(str, arguments)]
            quoted = " ".join("'" + word + "'" for word in ["tessera", *words])
            # An indexed job tells its pods their numbers.
            text = f"export JOB_COMPLETION_INDEX=0\n{quoted}\n"
            self.sh(blocks.Block(block.page, block.line, "sh", text, {}))

    def run(self):
        """Complaints about the page."""
        return self.complaints_of((SOURCE / self.page).read_text())

    def complaints_of(self, text):
        found = []
        with tempfile.TemporaryDirectory() as folder:
            self.folder = pathlib.Path(folder)
            self.prepare()
            for number, line in enumerate(text.split("\n"), 1):
                try:
                    self.check_keys(INLINE_KEY.findall(line), f"{self.page}:{number}")
                except Failure as failure:
                    found.append(str(failure))
            try:
                for block in blocks.blocks_of(text, self.page):
                    if (name := block.marks.get("file")) and "task" not in block.text:
                        self.write(name, block.text)
                    test = getattr(self, block.language, None)
                    try:
                        if test:
                            test(block)
                    except Failure as failure:
                        found.append(str(failure))
                    except (ValueError, SyntaxError) as error:
                        found.append(f"{block.place}: {error}")
            except blocks.PageError as error:
                found.append(str(error))
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, help="build folder with bin/tessera")
    parser.add_argument("pages", nargs="+", help="pages, relative to the project")
    arguments = parser.parse_args()
    found = [c for page in arguments.pages for c in PageTest(arguments.build, page).run()]
    for complaint in found:
        print(complaint)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
