"""Tables for people: rich where there is a terminal, plain columns of the same cells elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and how its cells are aligned."""

    title: str
    right: bool = False


def print_table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headings; wide cells fold on a terminal and stay whole in a pipe."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    if sys.stdout.isatty():
        Console(highlight=False, markup=False).print(table)
        return
    console = Console(highlight=False, markup=False, width=400)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_records(title: str, records: Sequence[Any]) -> None:
    """Print dataclass instances of one type: a column per field, numbers to the right."""
    if not records:
        print(f"{title}: nothing")
        return
    names = [field.name for field in fields(records[0])]
    numeric = [isinstance(getattr(records[0], name), (int, float)) for name in names]
    columns = [
        Column(name.replace("_", " "), right) for name, right in zip(names, numeric, strict=True)
    ]
    rows = [[_cell(getattr(record, name)) for name in names] for record in records]
    print_table(title, columns, rows)


def to_json(records: Sequence[Any]) -> list[dict[str, Any]]:
    """The records' fields as plain data."""
    from dataclasses import asdict

    assert all(is_dataclass(record) for record in records)
    return [asdict(record) for record in records]


def _cell(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "NO"
        case float():
            return f"{value:.4g}"
        case None:
            return "-"
        case dict():
            return ", ".join(f"{key} {count}" for key, count in value.items())
        case _:
            return str(value)
