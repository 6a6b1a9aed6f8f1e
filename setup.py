"""Builds the native library into the package where there is a C compiler; everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))

from qgelu.errors import QGeluError
from qgelu.native.build import PACKAGE, build_library, find_compiler


class BuildWithNative(build_py):
    """Copies the package, then compiles the library beside it."""

    def run(self) -> None:
        """Build; without a compiler the package is complete but for the library."""
        super().run()
        folder = PACKAGE if self.editable_mode else Path(self.build_lib) / "qgelu" / "native"
        try:
            build_library(folder)
        except QGeluError as error:
            self.warn(f"without the native kernels: {error}")


class PlatformDistribution(Distribution):
    """A package with machine code in it."""

    def has_ext_modules(self) -> bool:
        """Say whether it goes where packages for one platform go."""
        return find_compiler() is not None


class PlatformWheel(bdist_wheel):
    """A wheel for this platform and every Python 3, since the library knows nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag."""
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


setup(distclass=PlatformDistribution, cmdclass={"build_py": BuildWithNative, "bdist_wheel": PlatformWheel})
