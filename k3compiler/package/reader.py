"""Opening a package: every byte is checked before anything in it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from k3compiler.errors import K3Error
from k3compiler.package.codec import canonical_json
from k3compiler.package.expr import Expr, parse
from k3compiler.package.manifest import (
    MANIFEST_NAME,
    LaunchStep,
    Manifest,
    Plan,
    WeightMap,
    model_digest,
    sha256_hex,
)

_REBUILD = "the package is damaged or was edited; compile it again"


@dataclass(frozen=True, slots=True)
class Package:
    """An opened package. ``files`` were verified when it was opened, not later."""

    path: Path
    manifest: Manifest
    plans: Mapping[str, Plan]
    weights: WeightMap

    @classmethod
    def open(cls, path: str | Path) -> Package:
        """Read a package directory, verify every digest, and check that its plans fit together.

        Raises:
            K3Error: K3-K003 not a package, K3-K004 another schema, K3-K005 a changed, missing or
                foreign file, K3-K006 a path that leaves the directory, K3-K001 a bad expression.
        """
        root = Path(path)
        manifest = _read_manifest(root)
        _verify_files(root, manifest)
        plans = {
            phase: Plan.from_json(_read_json(root / name), name)
            for phase, name in manifest.plans.items()
        }
        weights = WeightMap.from_json(_read_json(root / manifest.weights), manifest.weights)
        package = cls(root, manifest, plans, weights)
        for phase, plan in plans.items():
            _check_plan(package, plan, manifest.plans[phase])
        return package

    def plan(self, phase: str) -> Plan:
        """The plan of ``phase``; K3-K003 where the package has none."""
        if phase not in self.plans:
            have = ", ".join(self.plans) or "none"
            raise K3Error("K3-K003", where=str(self.path), expected=f"a {phase} plan", found=have)
        return self.plans[phase]

    def file(self, name: str) -> Path:
        """The path of a listed file."""
        assert name in self.manifest.files, f"{name} is not a file of the package"
        return self.path / name

    def read(self, name: str) -> bytes:
        """The bytes of a listed file, checked again against its digest."""
        data = self.file(name).read_bytes()
        if sha256_hex(data) != self.manifest.files[name]:
            raise _changed(self.path / name, "the digest in the manifest", "other bytes")
        return data


def _read_manifest(root: Path) -> Manifest:
    path = root / MANIFEST_NAME
    if not path.is_file():
        found = "no manifest.json" if root.is_dir() else "no such directory"
        raise K3Error("K3-K003", where=str(root), expected="a package directory", found=found)
    data = path.read_bytes()
    loaded = _parse_json(data, path)
    manifest = Manifest.from_json(loaded, str(path))
    bare = replace(manifest, digest="")
    if canonical_json(loaded) != data or bare.sealed(bare.files).digest != manifest.digest:
        raise _changed(path, "a manifest as it was built", "other bytes")
    if model_digest(manifest.model) != manifest.model_id:
        raise _changed(path, "model_id = digest of model", manifest.model_id)
    return manifest


def _read_json(path: Path) -> Any:
    return _parse_json(path.read_bytes(), path)


def _parse_json(data: bytes, path: Path) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as fault:
        raise K3Error("K3-K003", where=str(path), expected="JSON", found=str(fault)) from None


def _verify_files(root: Path, manifest: Manifest) -> None:
    present = {p.relative_to(root).as_posix(): p for p in root.rglob("*") if not _is_folder(p)}
    present.pop(MANIFEST_NAME)
    foreign = sorted(set(present) - set(manifest.files))
    if foreign:
        raise _changed(root / foreign[0], "only files that the manifest lists", "a foreign file")
    missing = sorted(set(manifest.files) - set(present))
    if missing:
        raise _changed(root / missing[0], "the file", f"missing ({len(missing)} in all)")
    for name, digest in manifest.files.items():
        if present[name].is_symlink():
            raise _changed(present[name], "a regular file", "a symbolic link")
        if sha256_hex(present[name].read_bytes()) != digest:
            raise _changed(present[name], f"sha256 {digest[:16]}...", "other bytes")


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _changed(path: Path, expected: str, found: str) -> K3Error:
    return K3Error("K3-K005", where=str(path), expected=expected, found=found, hint=_REBUILD)


def _check_plan(package: Package, plan: Plan, where: str) -> None:
    """Every name a step uses exists, every expression parses, counts agree."""
    kernels = {k.symbol: k for k in package.manifest.kernels}
    storage = {block.id for block in plan.storage}
    buffers = {b.name for b in plan.buffers}
    params = {f"w:{p.name}" for p in package.weights.params}
    for buffer in plan.buffers:
        _parse_all(buffer.shape)
        if buffer.storage is not None and buffer.storage not in storage:
            raise _misfit(f"{where}: buffer {buffer.name}", "a storage block", buffer.storage)
    _parse_all([block.bytes for block in plan.storage])
    for output in plan.outputs:
        if output not in buffers:
            raise _misfit(where, f"a buffer for output {output}", "none")
    for index, step in enumerate(plan.steps):
        here = f"{where}: step {index} ({step.op})"
        for name in (a for a in step.args if a.startswith("w:") and a not in params):
            raise _misfit(here, f"parameter {name[2:]} in weights.json", "none")
        if isinstance(step, LaunchStep):
            _check_launch(step, kernels, here)


def _check_launch(step: LaunchStep, kernels: Mapping[str, Any], where: str) -> None:
    if step.launch not in kernels:
        raise _misfit(where, f"a kernel named {step.launch}", "none")
    want = kernels[step.launch].args
    if len(want) != len(step.args):
        raise _misfit(where, f"{len(want)} arguments of {step.launch}", len(step.args))
    _parse_all(step.grid)
    scalars = zip(want, step.args, strict=True)
    _parse_all([a for w, a in scalars if w.kind == "scalar" and not a.startswith("f:")])


def _parse_all(exprs: tuple[Expr, ...] | list[Expr]) -> None:
    for expr in exprs:
        parse(expr)


def _misfit(where: str, expected: str, found: object) -> K3Error:
    return K3Error("K3-K003", where=where, expected=expected, found=str(found))
