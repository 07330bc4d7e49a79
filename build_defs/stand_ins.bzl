"""Stand-ins for the repositories that Bazel 4 would otherwise download.

Bazel's own build files load the C++ and Java rules from repositories on the web
that only pass on what is built into Bazel 4. So do the ones made here. (It has
more such repositories, which nothing here makes it load.)
"""

_CC_RULES = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_proto_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
    "objc_library",
]

_JAVA_RULES = [
    "java_binary",
    "java_import",
    "java_library",
    "java_proto_library",
    "java_runtime",
    "java_test",
    "java_toolchain",
]

def _native_rules_impl(ctx):
    ctx.file(ctx.attr.language + "/BUILD")
    ctx.file(ctx.attr.language + "/defs.bzl", "\n".join([
        "%s = native.%s" % (rule, rule)
        for rule in ctx.attr.rules
    ]))

_native_rules = repository_rule(
    implementation = _native_rules_impl,
    attrs = {
        "language": attr.string(mandatory = True),
        "rules": attr.string_list(mandatory = True),
    },
)

def _no_coverage_tools_impl(ctx):
    # Every test depends on it, though only `bazel coverage` runs it.
    ctx.file("BUILD", """\
filegroup(
    name = "coverage_report_generator",
    visibility = ["//visibility:public"],
)
""")

_no_coverage_tools = repository_rule(implementation = _no_coverage_tools_impl)

def stand_ins():
    """Declares them under the names that Bazel knows."""
    _native_rules(name = "rules_cc", language = "cc", rules = _CC_RULES)
    _native_rules(name = "rules_java", language = "java", rules = _JAVA_RULES)
    _no_coverage_tools(name = "remote_coverage_tools")
