"""``k3c verify PKG``."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from k3compiler.errors import K3Error

if TYPE_CHECKING:
    from k3compiler.check.emulator.runner import EmulatedRow
    from k3compiler.check.verify import VerifyRow
    from k3compiler.package.reader import Package


def verify_command(
    package: Annotated[Path, typer.Argument(help="A package directory.")],
    *,
    on: Annotated[
        Literal["cpu", "emulator"] | None,
        typer.Option(
            help="cpu: run the tile programs on the CPU, whatever the package is for. emulator: run an AMD package's "
            "code objects on the CPU, in two wave orders (needs TINYGRAD_SRC) "
            "[default: the package's own binaries on its own device]."
        ),
    ] = None,
    kernel: Annotated[
        list[str] | None, typer.Option(help="Only kernels whose symbol contains this; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
    programs: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="With --on emulator: run at most this many programs of every grid, and judge what those wrote.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check every kernel against the reference."""
    from k3compiler.cli.tables import print_records, to_json
    from k3compiler.cli.values import check_kernels
    from k3compiler.package.reader import Package

    opened = Package.open(package)
    check_kernels(kernel, opened)
    rows: Sequence[VerifyRow | EmulatedRow]
    if on == "emulator":
        from k3compiler.check.emulator.runner import verify_emulated

        emulated = verify_emulated(opened, kernels=kernel, seed=seed, most_programs=programs)
        rows = list(emulated)
    else:
        with _running(opened, on, kernel) as running:
            rows = _rows(running, kernel, seed, best_only=on is not None)
    if as_json:
        print(json.dumps(to_json(rows), indent=1))
    else:
        print_records(f"{package}, seed {seed}", rows)
    failed = [row for row in rows if not row.passed]
    if failed:
        raise K3Error(
            "K3-K020",
            where=", ".join(sorted({row.kernel for row in failed})),
            expected="every output within its tolerance of the reference",
            found=f"{len(failed)} of {len(rows)} checks failed",
            hint=f"k3c verify {package} --seed {seed} --kernel {failed[0].kernel} shows one alone",
        )
    if not as_json:
        print(f"{len(rows)} checks passed")


@contextmanager
def _running(package: Package, on: str | None, kernels: list[str] | None) -> Generator[Package]:
    """The package itself, or its CPU twin while that is wanted."""
    if on is None:
        yield package
        return
    from tempfile import TemporaryDirectory

    from k3compiler.cli.cpu_twin import write_cpu_twin
    from k3compiler.cli.extras import require_extra

    require_extra("compile", where="k3c verify --on cpu")
    with TemporaryDirectory(prefix="k3c-verify-") as folder:
        yield write_cpu_twin(package, Path(folder) / "twin", kernels=kernels)


def _rows(
    package: Package, kernels: list[str] | None, seed: int, *, best_only: bool
) -> list[VerifyRow]:
    """A CPU package on every instruction level that this machine has, or the best; any other on its device."""
    if package.manifest.target.kind == "cpu":
        from k3compiler.check.isolated import verify_isolated
        from k3compiler.runtime.device.cpu import usable_levels

        rows: list[VerifyRow] = []
        for level in usable_levels(package)[: 1 if best_only else None]:
            rows += verify_isolated(package, level=level, kernels=kernels, seed=seed)
        return rows
    from k3compiler.check.runner import DeviceRunner
    from k3compiler.check.verify import verify_package
    from k3compiler.runtime.device.select import open_device

    device = open_device(None, package.manifest.target)
    device.load(package)
    return verify_package(package, runner=DeviceRunner(device), kernels=kernels, seed=seed)
