"""Prints lines per folder and what is long. Guidance only: it never fails."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).parent.parent
LONG_FILE, LONG_FUNCTION = 400, 40


def function_lines(tree: ast.Module) -> dict[str, int]:
    """Lines of every function, by name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        n.name: (n.end_lineno or n.lineno) - n.lineno + 1
        for n in ast.walk(tree)
        if isinstance(n, kinds)
    }


def main() -> None:
    rooms: dict[str, list[int]] = defaultdict(list)
    functions: dict[str, list[int]] = defaultdict(list)
    long: list[str] = []
    for path in sorted([*(ROOT / "k3compiler").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        text = path.read_text()
        place = path.relative_to(ROOT)
        head, *rest = place.parts
        room = rest[0] if head == "k3compiler" and len(rest) > 1 else head
        lines = text.count("\n")
        sizes = function_lines(ast.parse(text))
        rooms[room].append(lines)
        functions[room] += sizes.values()
        if lines > LONG_FILE:
            long.append(f"  {place}: {lines} lines")
        long += [f"  {place}:{name}: {n} lines" for name, n in sizes.items() if n > LONG_FUNCTION]
    print(
        f"{'room':<12}{'files':>6}{'lines':>8}{'median file':>13}{'largest':>9}{'p90 function':>14}"
    )
    for room, lines_of in rooms.items():
        p90 = round(quantiles(functions[room], n=10)[-1]) if len(functions[room]) > 1 else 0
        print(
            f"{room:<12}{len(lines_of):>6}{sum(lines_of):>8}{round(median(lines_of)):>13}"
            f"{max(lines_of):>9}{p90:>14}"
        )
    print("look twice at:", *(long or ["  nothing"]), sep="\n")


if __name__ == "__main__":
    main()
