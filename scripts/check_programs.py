#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every program that a script, the Makefile or a test starts is one
that set-up installs, or that any Debian has.

    check_programs.py [ROOT]

Read are the command words of shell scripts and of the Makefile's recipes, and
the literal first words of commands that Python (subprocess, os.exec*,
shutil.which) and C++ (exec*, system, popen) start. A program that is
deliberately not installed, because what calls it does without, has a line in
OPTIONAL with the reason.
"""

import ast
import pathlib
import re
import subprocess
import sys

SETUP = "scripts/setup.sh"
# What `debootstrap --variant=minbase` has: Essential packages and their needs.
ESSENTIAL = set("""
    apt-get dpkg dpkg-query bash sh awk grep sed find xargs tar gzip
    cmp diff flock mount umount unshare setsid getent ldconfig ldd hostname perl login
    [ arch basename cat chgrp chmod chown cksum comm cp cut date dd df dirname
    du echo env expand expr false fold groups head id install join link ln ls
    md5sum mkdir mkfifo mknod mktemp mv nice nl nohup nproc od paste printenv
    printf pwd readlink realpath rm rmdir seq sha1sum sha256sum sleep sort split stat
    stty sum sync tac tail tee test timeout touch tr true truncate tsort tty
    uname uniq unlink wc which whoami yes
""".split())
# What a user has who has cloned the project and types make.
REQUIRED_OF_USERS = {"git", "make"}
# Debian package, or file of requirements for .venv: its programs.
INSTALLED = {
    "g++": {"g++", "strip", "nm", "objdump", "readelf", "addr2line",
            "c++filt"},
    "pkg-config": {"pkg-config"},
    "ccache": {"ccache"},
    "python3": {"python3"},
    "tools.txt": {"cmake", "ctest", "ninja", "clang-format"},
    "torchrun.txt": {"torchrun"},
}
OPTIONAL = {
    "apt": "a function of setup.sh",
    "clang++": "fuzz.sh asks for it and says what to install",
    "clang-tidy": "tidy.sh asks for it and says what to install",
    "run-clang-tidy": "tidy.sh asks for it and says what to install",
    "debootstrap": "gpu_bare_machine.sh says what it needs",
    "docker": "only in documents' stubs",
    "nvcc": "CUDA code is compiled where it is found",
    "nvidia-smi": "only on machines with a device",
    "compute-sanitizer": "only on machines with a device, where it is found",
    "shellcheck": ".ci/run installs it; lint.sh needs it",
    "sudo": "setup.sh prints the line to run where it is missing",
}
KEYWORDS = set("""
    if then elif else fi for while until do done case esac in function select
    time ! { } [[ ]]
""".split())
BUILTINS = set("""
    . : alias bg break builtin cd command continue declare dirs eval exec exit
    export fc fg getopts hash help history jobs kill let local logout mapfile
    popd pushd read readarray readonly return set shift shopt source times trap
    type typeset ulimit umask unalias unset wait echo printf test [ true false
    pwd
""".split())
# Those whose next word is a command again.
PREFIXES = {"exec", "command", "env", "nice", "nohup", "time", "timeout", "xargs",
            "if", "then", "elif", "else", "while", "until", "do", "!", "{"}
NAME = re.compile(r"[A-Za-z\[][A-Za-z0-9_.+-]*$")


def tokens(text):
    """Words and operators of a shell script, without comments, heredocs and
    what is quoted; a substitution's commands are among them."""
    result, word, i = [], "", 0
    heredocs = []

    def end_word():
        nonlocal word
        if word:
            result.append(word)
        word = ""

    def skip_single(at):
        return text.index("'", at) + 1

    depth = []  # what closes the substitutions we are in
    while i < len(text):
        c = text[i]
        if c == "\\":
            word += text[i + 1:i + 2].strip("\n")
            i += 2
        elif c == "'":
            i = skip_single(i + 1)
            word += "''"
        elif text.startswith("$((", i):
            level, i = 2, i + 3
            while level and i < len(text):
                level += {"(": 1, ")": -1}.get(text[i], 0)
                i += 1
            word += "$n"
        elif text.startswith("$(", i) or (c == "`" and "`" not in depth):
            word += "$s"
            depth.append((")" if c == "$" else "`", word))
            result.append("$(")
            word = ""
            i += 2 if c == "$" else 1
        elif c == '"':
            if depth and depth[-1][0] == '"':
                _, before = depth.pop()
                word = before + '""'
            else:
                depth.append(('"', word))
                word = ""
            i += 1
        elif depth and depth[-1][0] == '"':
            word += c
            i += 1
        elif text.startswith("${", i):
            level = 0
            while i < len(text):
                level += {"{": 1, "}": -1}.get(text[i], 0)
                i += 1
                if level == 0:
                    break
            word += "$v"
        elif c == "#" and not word:
            while i < len(text) and text[i] != "\n":
                i += 1
        elif text.startswith("<<<", i):
            end_word()
            result.append(">")
            i += 3
        elif found := re.match(r"<<-?\s*(['\"]?)(\w+)\1", text[i:]):
            heredocs.append(found.group(2))
            i += found.end()
        elif c == "\n":
            end_word()
            result.append("\n")
            i += 1
            for name in heredocs:
                end = re.compile(rf"^\t*{name}$", re.M).search(text, i)
                i = end.end() if end else len(text)
            heredocs = []
        elif depth and c == depth[-1][0]:
            end_word()
            _, word = depth.pop()
            result.append("$)")
            i += 1
        elif text.startswith("((", i) and not word:
            i = text.index("))", i) + 2  # arithmetic
            result.append("''")
        elif c == "(" and word.endswith("="):
            # Elements of an array, which are no commands.
            level = 0
            while i < len(text):
                level += {"(": 1, ")": -1}.get(text[i], 0)
                i += 1
                if level == 0:
                    break
        elif c in ";|&()":
            end_word()
            result.append(c)
            i += 1
        elif c in "<>":
            if word.isdigit():
                word = ""
            end_word()
            result.append(">")
            i += 1
            if text[i:i + 1] in ("&", ">", "("):
                i += text[i] != "("
        elif c.isspace():
            end_word()
            i += 1
        else:
            word += c
            i += 1
    end_word()
    return result


def shell_programs(text):
    """The command words of a shell script, without its own functions."""
    words = tokens(text)
    functions = set(re.findall(r"^\s*(?:function\s+)?([\w-]+)\s*\(\)", text, re.M))
    found = set()
    stack = []  # states outside of the substitutions
    expects, skips = True, False
    for i, word in enumerate(words):
        if word == "$(":
            stack.append((expects, skips))
            expects, skips = True, False
        elif word == "$)":
            expects, skips = stack.pop() if stack else (False, False)
        elif word in ("\n", ";", "|", "&", "(", ")"):
            expects, skips = True, False
        elif word == ">":
            skips = True  # the name of a file
        elif skips:
            skips = False
        elif not expects:
            continue
        elif word in ("case", "for", "select", "function", "[["):
            expects = False
        elif re.match(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=", word):
            continue  # an assignment
        elif word in PREFIXES or word in KEYWORDS:
            continue
        elif word.startswith("-") or word[0].isdigit():
            continue  # options of a prefix
        else:
            expects = False
            follows = words[i + 1] if i + 1 < len(words) else ""
            if follows == ")" or (follows == "|" and is_pattern(words, i)):
                continue  # a pattern of `case`
            if NAME.match(word) and word not in BUILTINS | functions:
                found.add(word)
    return found


def is_pattern(words, i):
    """Whether words[i] is one of the patterns `a | b)` of a case."""
    while i + 2 < len(words) and words[i + 1] == "|":
        i += 2
    return i + 1 < len(words) and words[i + 1] == ")"


def python_programs(text, name):
    """Literal first words of the commands that a Python file starts."""
    found = set()
    for node in ast.walk(ast.parse(text, name)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = ast.unparse(node.func)
        if re.fullmatch(r"subprocess\.\w+|os\.(exec\w+|spawn\w+|system|popen)|shutil\.which",
                        function) is None:
            continue
        first = node.args[0]
        if isinstance(first, (ast.List, ast.Tuple)) and first.elts:
            first = first.elts[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            word = first.value.split()[0] if first.value.split() else ""
            if NAME.match(word):
                found.add(word)
    return found


def cpp_programs(text):
    """Literal programs of exec*p(), system() and popen()."""
    return set(re.findall(
        r'\b(?:execl?v?pe?|system|popen)\(\s*"([A-Za-z][\w.+-]*)', text))


def make_programs(text):
    """The command words of a Makefile's recipes, each of which is a script."""
    text = re.sub(r"\\\n\s*", " ", text)
    recipes = re.findall(r"^\t[@-]*(.*)$", text, re.M)
    return set().union(*(shell_programs(
        re.sub(r"\$\((\w+)[^)]*\)", r"$v", line).replace("$$", "$"))
        for line in recipes))


def programs_of(path, text):
    if path.suffix in (".sh",) or path.parent.name == ".ci":
        return shell_programs(text)
    if path.suffix == ".py":
        return python_programs(text, str(path))
    if path.suffix in (".cpp", ".h"):
        return cpp_programs(text)
    if path.name == "Makefile":
        return make_programs(text)
    return set()


def installed(root):
    """The programs that set-up installs."""
    setup = (root / SETUP).read_text()
    packages = re.search(r"debian_packages=\(([^)]*)\)", setup).group(1).split()
    requirements = {path.name for path in root.glob("scripts/requirements/*.txt")}
    known = set()
    for source, programs in INSTALLED.items():
        if source in packages or source in requirements:
            known |= programs
    return known


def complaints(root, files):
    known = (ESSENTIAL | REQUIRED_OF_USERS | BUILTINS | set(OPTIONAL)
             | installed(root))
    for file in files:
        path = root / file
        if not path.is_file():
            continue
        for program in sorted(
                programs_of(path, path.read_text(encoding="utf-8")) - known):
            yield (f"{file}: starts '{program}', which {SETUP} does not install: do"
                   " without it, add its Debian package to debian_packages and"
                   " to INSTALLED in scripts/check_programs.py, or to OPTIONAL"
                   " there with the reason why it may be missing")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    files = subprocess.run(
        ["git", "ls-files", "*.sh", "*.py", ".ci/run", "Makefile", "*.cpp", "*.h"],
        cwd=root, check=True, capture_output=True, text=True).stdout.split("\n")
    found = list(complaints(root, filter(None, files)))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
