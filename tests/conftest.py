"""Fixtures that more than one file uses."""

import pytest

from qgelu.errors import QGeluError
from qgelu.native.build import PACKAGE, build_library, find_compiler
from qgelu.native.loader import native_library_path


@pytest.fixture(scope="session")
def native_library():
    """The native library of these sources, built if it is not there."""
    try:
        return native_library_path()
    except QGeluError:
        if find_compiler() is None:
            pytest.skip("no C compiler")
        return build_library(PACKAGE)
