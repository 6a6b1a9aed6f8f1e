"""Builds the native library with the C compiler that is there: ``python -m qgelu.native.build``.

The package's own build calls it too. It needs gcc or clang and nothing else: no header of ONNX Runtime's or Python's.
"""

import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from qgelu.errors import QGeluError

PACKAGE: Final = Path(__file__).resolve().parent
SOURCES: Final = PACKAGE / "src"
FLAGS: Final = ("-std=c11", "-O3", "-fPIC", "-fvisibility=hidden")
COMPILERS: Final = ("cc", "gcc", "clang")

_ENDINGS: Final = {"darwin": ".dylib", "win32": ".dll"}


def source_files() -> list[Path]:
    """Return the C sources and headers, sorted."""
    return sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")])


@functools.cache
def library_name() -> str:
    """Return the library's file name, which tells what sources it was built from.

    Raises
    ------
    QGeluError
        If the sources are missing.
    """
    digest = hashlib.sha256()
    for path in source_files():
        digest.update(path.name.encode() + path.read_bytes())
    if not source_files():
        raise QGeluError(f"{SOURCES}: the C sources are missing: install the package again")
    return f"libqgelu_ort-{digest.hexdigest()[:8]}{_ENDINGS.get(sys.platform, '.so')}"


def find_compiler() -> list[str] | None:
    """Return the command of a C compiler: ``CC`` of the environment, Python's own, or one of :data:`COMPILERS`."""
    wishes = [os.environ.get("CC") or "", sysconfig.get_config_var("CC") or "", *COMPILERS]
    for wish in wishes:
        command = shlex.split(wish)
        if command and shutil.which(command[0]):
            return command
    return None


def build_library(folder: Path) -> Path:
    """Compile the library into a folder and return its path; other builds of it in that folder are deleted.

    Parameters
    ----------
    folder : Path
        Made if it is not there. ``CFLAGS`` and ``LDFLAGS`` of the environment are heeded.

    Raises
    ------
    QGeluError
        If there is no compiler, it fails, or the folder cannot be written to.
    """
    compiler = find_compiler()
    if compiler is None:
        raise QGeluError("no C compiler: install gcc or clang, or name one in the environment variable CC")
    target = folder / library_name()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
            compile_sources(compiler, Path(scratch) / target.name)
            for old in folder.glob("libqgelu_ort-*"):
                old.unlink()
            (Path(scratch) / target.name).replace(target)
    except OSError as error:
        raise QGeluError(f"{folder}: cannot build the native library there: {error.strerror}") from None
    return target


def compile_sources(compiler: Sequence[str], target: Path) -> None:
    """Run the compiler.

    Raises
    ------
    QGeluError
        If it fails, with its first error.
    """
    flags = [*FLAGS, *shlex.split(os.environ.get("CFLAGS", ""))]
    sources = [str(path) for path in source_files() if path.suffix == ".c"]
    linking = ["-shared", "-o", str(target), *shlex.split(os.environ.get("LDFLAGS", ""))]
    done = subprocess.run([*compiler, *flags, *sources, *linking], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["failed"]
        raise QGeluError(f"{compiler[0]} cannot build the native library: {lines[0].strip()}")


def main() -> int:
    """Build the library into the package; return the exit code."""
    try:
        print(build_library(PACKAGE))
    except QGeluError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
