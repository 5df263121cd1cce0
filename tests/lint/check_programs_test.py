# SPDX-License-Identifier: Apache-2.0
"""The check of programs finds those that set-up does not install."""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_programs  # noqa: E402


class CheckPrograms(unittest.TestCase):
    def test_command_words_of_a_shell_script(self):
        text = r"""
own() { first "$1" | second -x; }
# comment: no
A=1 third a && ! fourth || { fifth; }
if sixth -q; then exec seventh; fi
for name in word other; do eighth "$(ninth "$name" '$(no)')" >file 2>&1; done
case $x in
  no) own ;;
  no | never) tenth ;;
esac
list=(no "$(no)" no)
((no > 1))
cat <<'END'
no here
END
eleventh "${x:-no}" $((no + 1)) \
  no | env B=2 timeout 5 twelfth
while IFS= read -r line; do thirteenth <<<"$line"; done
"""
        self.assertEqual(
            check_programs.shell_programs(text),
            {"first", "second", "third", "fourth", "fifth", "sixth", "seventh",
             "eighth", "ninth", "tenth", "eleventh", "twelfth", "thirteenth",
             "cat"})

    def test_programs_that_python_starts(self):
        text = ('import subprocess\nsubprocess.run(["ps", "-o", name])\n'
                'subprocess.check_output("who -a", shell=True)\n'
                'subprocess.Popen([sys.executable, "no"])\nother(["no"])\n')
        self.assertEqual(
            check_programs.python_programs(text, "x.py"), {"ps", "who"})

    def test_programs_that_cpp_starts(self):
        text = 'execlp("tput", "tput");\nstd::system("less file");\nrun("no");'
        self.assertEqual(check_programs.cpp_programs(text), {"tput", "less"})

    def test_recipes_of_a_makefile(self):
        text = "all: no\n\t@$(program) no && lsof \\\n\t  no\n\tcp $$no no\n"
        self.assertEqual(check_programs.make_programs(text), {"lsof", "cp"})

    def test_a_package_that_set_up_no_longer_installs_is_missed(self):
        known = check_programs.installed(ROOT)
        self.assertIn("ccache", known)
        self.assertIn("cmake", known)
        self.assertNotIn("ps", known)

    def test_the_project_starts_nothing_else(self):
        scripts = [str(path.relative_to(ROOT)) for path in ROOT.glob("scripts/*.*")
                   if path.is_file()]
        self.assertGreater(len(scripts), 10)
        self.assertEqual(
            list(check_programs.complaints(ROOT, [*scripts, ".ci/run", "Makefile"])),
            [])


if __name__ == "__main__":
    unittest.main()
