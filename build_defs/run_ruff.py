"""`bazel run //:ruff -- …`: ruff, of the version in the lock."""

import os
import sys

# Bazel starts programs in the runfiles; ruff is to see the source tree.
os.chdir(os.environ['BUILD_WORKSPACE_DIRECTORY'])
os.execv(sys.executable, [sys.executable, '-m', 'ruff', *sys.argv[1:]])
