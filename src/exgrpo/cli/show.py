"""Tables and reports on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from exgrpo.tasks.check import DataReport


def print_table(rows: Sequence[Sequence[str]], *, title: str) -> None:
    """Print rows, the first of which is the header; the first column is left-aligned, numbers right."""
    header, *body = rows
    # Without lines and with little between columns an evaluation's row fits into 80 characters.
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in body:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def print_data_report(report: DataReport) -> None:
    """Print what a check of questions has found, and one prompt as the model gets it."""
    median, high, most = report.prompt_tokens
    print(f"{report.source}")
    print(f"  {report.num_rows} rows, {report.num_questions} distinct questions")
    print(f"  prompts of {median} tokens (median), {high} (95 %), {most} (longest)")
    print(f"  answers tried with {report.verifier}")
    for finding in report.findings:
        fate = ", left out" if finding.dropped else ""
        print(f"  {finding.severity}: {finding.kind}, {finding.num_rows} rows{fate}: {finding.message}")
    if not report.findings:
        print("  nothing is wrong")
    print("  the first prompt, as the model gets it, and its answer:")
    print("\n".join(f"  | {line}" for line in report.example.splitlines()))
    print(f"  > {report.example_answer}\n")
