"""A number that changes with the kernels' source.

Numba's cache looks at the file of a cached function alone, not at the files whose code it builds in. Functions that
hold this number in their closure are compiled anew whenever any kernel changes.
"""

import hashlib
from pathlib import Path
from typing import Final


def _digest() -> int:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:6], "little")


VERSION: Final = _digest()
