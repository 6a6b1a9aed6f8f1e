"""What people see while a command runs: progress and tables, on stderr."""

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_WIDTH_OF_FILES: Final = 160
"""Columns where stderr is not a terminal: nothing is cut off."""


def make_console() -> "Console":
    """Return a console on stderr."""
    import sys

    from rich.console import Console

    terminal = sys.stderr.isatty()
    return Console(
        stderr=True, highlight=False, soft_wrap=False, emoji=False, width=None if terminal else _WIDTH_OF_FILES
    )


class StageProgress:
    """Shows the stages of a job: bars with an estimate in a terminal, else one line for each finished stage.

    An instance is a :data:`qgelu.pipeline.Progress`; use it in a ``with`` statement.
    """

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._stage: tuple[str, int, float] | None = None

    def __enter__(self) -> "StageProgress":
        if self._console.is_terminal:
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
        elif kind is None:
            self._finish_stage()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Show how far a stage is."""
        if self._bars is not None:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(stage, total=total)
            self._bars.update(self._tasks[stage], completed=done, total=total)
            return
        if self._stage is None or self._stage[0] != stage:
            self._finish_stage()
            self._stage = (stage, done, time.monotonic())
        else:
            self._stage = (stage, done, self._stage[2])

    def _finish_stage(self) -> None:
        if self._stage is not None:
            stage, done, start = self._stage
            self._console.print(f"{stage}: {done} done in {time.monotonic() - start:.1f} s", markup=False)
            self._stage = None


def print_table(console: "Console", title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Show a table; columns whose name starts with ">" are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(Text(title, style="bold"))  # not as the table's own title, which wraps at its width
    console.print(table)
