"""Runs a tool of the Python environment on the source tree.

`bazel run //:ruff -- …`, `//:mypy`, `//:deptry` and `//:pdoc` are this program.
Its first argument is the tool; the others go to the tool.
"""

import os
import sys

# Bazel starts programs in the runfiles.
os.chdir(os.environ['BUILD_WORKSPACE_DIRECTORY'])
os.execv(sys.executable, [sys.executable, '-m', *sys.argv[1:]])
