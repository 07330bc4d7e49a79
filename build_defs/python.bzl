"""The three Python rules. A folder is a package, a library and a test.

They glob, so that BUILD files stay right as modules come and go.
"""

def pfl_py_library(name, **kwargs):
    """The modules of a folder, and of its folders without a BUILD file."""
    native.py_library(
        name = name,
        srcs = native.glob(["**/*.py"]),
        visibility = ["//visibility:public"],
        **kwargs
    )

def pfl_py_binary(name, main = None, **kwargs):
    """A module that is a program; `main` is its file if not `name`.py."""
    main = main or name + ".py"
    native.py_binary(name = name, srcs = [main], main = main, **kwargs)

def pfl_py_test(name, deps = [], test_deps = [], data = [], shards = None):
    """Runs pytest on a folder's *_test.py files.

    One process for all of them, as importing TFF takes seconds, and for those
    of its folders without a BUILD file; or as many as `shards`, where one would
    go on alone when all other folders are done. The other modules, conftest.py
    for one, become its library `:helpers`, and the tests see those of the
    folders above too.
    """
    tests = native.glob(["**/*_test.py"])
    above = native.package_name().rpartition("/")[0]
    native.py_library(
        name = "helpers",
        testonly = True,
        srcs = native.glob(["**/*.py"], exclude = tests),
        data = native.glob(["testdata/**"]),
        visibility = ["//tests:__subpackages__"],
        deps = deps + (["//%s:helpers" % above] if above else []),
    )
    if tests:
        native.py_test(
            name = name,
            timeout = "eternal",  # An hour; CI machines differ in speed.
            shard_count = shards,
            srcs = tests + ["//build_defs:run_pytest.py"],
            args = ["%s/%s" % (native.package_name(), test) for test in tests],
            data = [
                "//:pyproject.toml",  # pytest's settings.
                "//:requirements.lock",  # Another lock: test again.
            ] + data,
            main = "//build_defs:run_pytest.py",
            deps = [":helpers"] + test_deps,
        )
