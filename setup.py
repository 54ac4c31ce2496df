"""The optional C module `broker._fast`. Without a C compiler the build goes on, and the Python runs as it does."""

import os
import runpy
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).parent
os.environ["CHECKBACK_PURE"] = "1"  # what is built here must not be loaded here
compiled = runpy.run_path(str(HERE / "broker" / "compiled.py"))
fast = Extension(
    "broker._fast",
    [name for name in compiled["SOURCES"] if name.endswith(".c")],
    depends=list(compiled["SOURCES"]),
    define_macros=[
        ("Py_LIMITED_API", "0x030b0000"),
        ("CHECKBACK_SOURCES", f"{compiled['sources_crc'](str(HERE))}UL"),
    ],
    extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra", "-fno-strict-aliasing", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
    optional=True,
)
# A build of CPython without its global lock has no limited API; the module relies on both.
if sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    setup(ext_modules=[fast], options={"bdist_wheel": {"py_limited_api": "cp311"}})
else:
    setup()
