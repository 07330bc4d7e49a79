"""The virtual environment, made from requirements.lock, as Bazel's Python."""

_PYTHON_VERSION = "3.11"

# Prints the version, then the path; fails if venv would have no pip to install.
_PROBE = """
import sys
print("%d.%d" % sys.version_info[:2])
print(sys.executable)
import ensurepip, venv
"""

_NO_PYTHON = """

This needs Python {version} with its venv module; later Pythons have no
TensorFlow Federated. None of those in PATH will do:
{found}
On Debian 12: apt-get install python3.11-venv
With pyenv: pyenv install 3.11 && pyenv global 3.11
"""

_BUILD = """\
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

py_runtime(
    name = "python3",
    interpreter_path = "{python}",
    python_version = "PY3",
    # Starts Bazel's launchers. The default is `python`, which Debian lacks.
    stub_shebang = "#!{python}",
)

py_runtime_pair(
    name = "runtimes",
    py3_runtime = ":python3",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtimes",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def _find_python(ctx):
    """Returns the path of the first suitable Python in PATH, or fails."""
    found = []
    for name in ["python" + _PYTHON_VERSION, "python3", "python"]:
        for folder in ctx.os.environ.get("PATH", "").split(":"):
            python = folder + "/" + name
            if not folder.startswith("/") or not ctx.path(python).exists:
                continue
            probe = ctx.execute(
                [python, "-c", _PROBE],
                # A .python-version of pyenv's counts where the user put it.
                working_directory = str(ctx.path(ctx.attr.lock).dirname),
            )
            printed = probe.stdout.splitlines()
            if len(printed) != 2:
                found.append("  %s does not start" % python)
            elif printed[0] != _PYTHON_VERSION:
                found.append("  %s is Python %s" % (python, printed[0]))
            elif probe.return_code != 0:
                found.append("  %s lacks venv or ensurepip" % python)
            else:
                return printed[1]
    return fail(_NO_PYTHON.format(
        found = "\n".join(found) or "  (there is none)",
        version = _PYTHON_VERSION,
    ))

def _run(ctx, what, arguments):
    ctx.report_progress(what)
    ctx.file("tmp/.keep")
    result = ctx.execute(
        arguments,
        # If pip is interrupted, what it unpacked is left here, not in /tmp.
        environment = {"PYTHONPATH": "", "TMPDIR": str(ctx.path("tmp"))},
        timeout = 3600,
    )
    if result.return_code != 0:
        fail("%s failed:\n%s%s" % (what, result.stdout, result.stderr))
    ctx.delete("tmp")

def _python_environment_impl(ctx):
    # Bazel starts again from an empty folder after an interruption, and when
    # the lock changes, as ctx.path makes it something that this depends on.
    lock = ctx.path(ctx.attr.lock)
    venv = ctx.path("venv")
    python = str(venv) + "/bin/python"
    _run(ctx, "Making a virtual environment", [
        _find_python(ctx),
        "-m",
        "venv",
        venv,
    ])
    _run(ctx, "Installing %s (takes minutes)" % lock.basename, [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        # The lock is complete, and goes against what TFF says of jaxlib.
        "--no-deps",
        "--require-hashes",
        "--requirement",
        lock,
    ])
    ctx.file("BUILD", _BUILD.format(python = python), executable = False)

# `bazel clean` leaves this in place; `bazel clean --expunge` does not.
python_environment = repository_rule(
    implementation = _python_environment_impl,
    attrs = {"lock": attr.label(mandatory = True, allow_single_file = True)},
    doc = "Installs a lock file of pip's; offers the result as `:toolchain`.",
)
