"""The documents: links resolve, generated parts are current, the README's Python runs, every file has its place."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from qgelu.cli import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_generated_parts_are_current():
    done = subprocess.run(
        [sys.executable, "bench/update_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_option_is_on_the_command_line_page():
    text = (ROOT / "docs" / "command-line.md").read_text()
    for name, command in cli.commands.items():
        assert f"qgelu {name}" in text
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert all(option in text for option in parameter.opts), f"{name}: {parameter.opts}"


def test_the_readme_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("[  1   9 159] 0.51")


def test_readme_shows_the_accuracy_page():
    def part(path):
        text = path.read_text()
        return text[text.index("<!-- minilm:begin -->") : text.index("<!-- minilm:end -->")]

    assert part(ROOT / "README.md") == part(ROOT / "docs" / "accuracy.md")
