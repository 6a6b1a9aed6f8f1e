"""``python -m qgelu``."""

from qgelu.cli import main

main()
