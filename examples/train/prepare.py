"""Text to training data: collect, split by file, learn the tokenizer, tokenise, compress.

    python -m examples.train.prepare --wheels DIR --stdlib DIR --docs DIR --out .train-data

``--docs`` holds one directory per unpacked Debian package (``dpkg-deb -x``).
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from examples.train.bpe import count_words, learn_ranks
from examples.train.collect import (
    DUPLICATE_LINES,
    MAX_LINE,
    Document,
    Seen,
    html_text,
    inflate,
    is_text,
    tree_sources,
    wheel_sources,
)
from examples.train.shape import END_OF_TEXT, NUM_RANKS
from examples.train.shards import SHARD_SUFFIX, write_shard
from examples.train.tokenizer_files import write_tokenizer
from k3compiler.runtime.tokenizer import Tokenizer

SHARD_TOKENS = 2_000_000
LEARN_BYTES = 12_000_000  # of code and of prose each
HELD_OUT_BYTES = 1_500_000  # of code and of prose each, at most
PACKAGE_CODE, PACKAGE_PROSE = 3_500_000, 6_000_000  # bytes of one package at most
MIN_PROSE = 600
MAX_PROSE_FILE = 4_000_000
PROSE_SUFFIXES = (".html", ".htm", ".txt", ".rst", ".md", ".xhtml")
NOVEL_LINE = re.compile(rb"\x00\x04\x00\x09(....)", re.S)


def code_documents(wheels: Path, stdlib: Path) -> Iterator[Document]:
    """Python sources without what is mostly copies of earlier files."""
    seen = Seen()
    for document in _raw_code(wheels, stdlib):
        lines = document.text.split("\n")
        if seen.share(lines) <= DUPLICATE_LINES:
            seen.add(lines)
            yield document


def _raw_code(wheels: Path, stdlib: Path) -> Iterator[Document]:
    yield from tree_sources(stdlib)
    for wheel in sorted(wheels.glob("*.whl")):
        yield from first_of(wheel_sources(wheel), PACKAGE_CODE)


def first_of(documents: Iterable[Document], size: int) -> Iterator[Document]:
    """Documents until they hold ``size`` characters."""
    for document in documents:
        if size <= 0:
            return
        size -= len(document.text)
        yield document


def prose_documents(docs: Path) -> Iterator[Document]:
    """Documentation and books, each paragraph once."""
    seen = Seen()
    for package in sorted(p for p in docs.iterdir() if p.is_dir()):
        yield from first_of(_package_prose(package, seen), PACKAGE_PROSE)


def _package_prose(package: Path, seen: Seen) -> Iterator[Document]:
    for name, text in _package_texts(package):
        paragraphs = seen.fresh(re.split(r"\n\s*\n", text.strip("\n")))
        cleaned = "\n\n".join(paragraphs) + "\n"
        if len(cleaned) >= MIN_PROSE and _is_prose(cleaned):
            yield Document(f"{package.name}/{name}", cleaned)


def _is_prose(text: str) -> bool:
    short_lines = "\n".join(line[:MAX_LINE] for line in text.split("\n"))
    return is_text(short_lines) and text.count(" ") > len(text) / 12


def _package_texts(package: Path) -> Iterator[tuple[str, str]]:
    files = sorted(p for p in package.rglob("*") if p.is_file() and not p.is_symlink())
    sources = [p for p in files if "_sources" in p.parts]
    for path in sources or files:
        name = str(path.relative_to(package))
        if path.name.endswith(".rdb"):
            yield from _novels(path)
        elif path.suffix == ".bzz":
            text = inflate(path.read_bytes()).decode("utf-8", errors="ignore")
            plain = re.sub(r"<[^>]*>", " ", text)
            yield name, "\n".join(" ".join(line.split()) for line in plain.split("\n"))
            continue
        plain = name.removesuffix(".gz")
        if plain.endswith(PROSE_SUFFIXES) and path.stat().st_size < MAX_PROSE_FILE:
            yield name, _read_prose(path, plain)


def _read_prose(path: Path, plain: str) -> str:
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    text = content.decode("utf-8", errors="ignore").replace("\r\n", "\n")
    return html_text(text) if plain.endswith(("html", "htm")) else text


def _novels(path: Path) -> Iterator[tuple[str, str]]:
    """R's lazy-load file: the strings of its vectors, one document per 4,000 lines."""
    content = inflate(path.read_bytes())
    lines: list[str] = []
    for found in NOVEL_LINE.finditer(content):
        size = int.from_bytes(found.group(1), "big")
        if 0 <= size < 400:
            lines.append(content[found.end() : found.end() + size].decode("utf-8", "ignore"))
    for n in range(0, len(lines), 4000):
        yield f"novels/{n // 4000:02d}", "\n".join(lines[n : n + 4000])


def split(documents: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """Training and held-out documents; what is held out beyond the limit is dropped."""
    train, held, size = list[Document](), list[Document](), 0
    for document in documents:
        if not document.is_held_out:
            train.append(document)
        elif size < HELD_OUT_BYTES:
            held.append(document)
            size += len(document.text)
    return train, held


def sample(documents: list[Document], size: int) -> Iterator[str]:
    """Documents spread evenly over the list, of about ``size`` characters in all."""
    total = sum(len(d.text) for d in documents)
    stride = max(1, total // size)
    return (d.text for d in documents[::stride])


def tokenise(tokenizer: Tokenizer, documents: list[Document]) -> np.ndarray:
    """All documents, each followed by [EOS]."""
    parts: list[np.ndarray] = []
    for document in documents:
        parts.append(np.array([*tokenizer.encode(document.text), END_OF_TEXT], np.uint16))
    return np.concatenate(parts)


def write_shards(out: Path, stem: str, tokens: np.ndarray) -> None:
    for old in out.glob(f"{stem}-*{SHARD_SUFFIX}"):
        old.unlink()
    for n, start in enumerate(range(0, len(tokens), SHARD_TOKENS)):
        write_shard(out / f"{stem}-{n:03d}{SHARD_SUFFIX}", tokens[start : start + SHARD_TOKENS])


def prepare(wheels: Path, stdlib: Path, docs: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    kinds = {
        "code": split(code_documents(wheels, stdlib)),
        "prose": split(prose_documents(docs)),
    }
    for kind, (train, held) in kinds.items():
        sizes = [sum(len(d.text) for d in part) / 1e6 for part in (train, held)]
        print(
            f"{kind}: {len(train)} + {len(held)} files, {sizes[0]:.1f} + {sizes[1]:.2f} MB",
            flush=True,
        )
        for label, part in (("train", train), ("heldout", held)):
            joined = "".join(f"\x01{d.name}\x02{d.text}" for d in part)
            (out / f"raw-{label}-{kind}.txt").write_text(joined)
    if not (out / "tiktoken.model").is_file():
        words = count_words(t for train, _ in kinds.values() for t in sample(train, LEARN_BYTES))
        print(f"{len(words)} distinct pre-tokens", flush=True)
        write_tokenizer(out, learn_ranks(words, NUM_RANKS))
    tokenizer = Tokenizer(out)
    lengths = [len(tokenizer.token_bytes(n)) for n in range(NUM_RANKS)]
    lengths += [0] * (tokenizer.num_tokens - NUM_RANKS)
    (out / "token_bytes.json").write_text(json.dumps(lengths))
    for kind, (train, held) in kinds.items():
        for label, part in ((f"train-{kind}", train), (f"heldout-{kind}", held)):
            tokens = tokenise(tokenizer, part)
            size = sum(len(d.text.encode()) for d in part)
            print(
                f"{label}: {len(tokens) / 1e6:.2f}M tokens, {size / len(tokens):.2f} B each",
                flush=True,
            )
            write_shards(out, label, tokens)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("wheels", "stdlib", "docs", "out"):
        parser.add_argument(f"--{option}", type=Path, required=True)
    prepare(**vars(parser.parse_args()))
