"""Reading config.json key by key: every key is taken or refused by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn, TypeVar

from k3compiler.errors import K3Error

T = TypeVar("T")

# What HF's config classes write into every file and no text model reads.
BOOKKEEPING = frozenset(
    "transformers_version torch_dtype dtype auto_map initializer_range use_cache "
    "_name_or_path _attn_implementation_autoset _attn_implementation return_dict is_encoder_decoder "
    "is_decoder output_attentions output_hidden_states output_router_logits use_return_dict "
    "chunk_size_feed_forward id2label label2id problem_type pruned_heads attention_dropout "
    "hidden_dropout pretraining_tp torchscript use_bfloat16 add_cross_attention "
    "cross_attention_hidden_size tie_encoder_decoder finetuning_task task_specific_params "
    "tokenizer_class prefix sep_token_id decoder_start_token_id tf_legacy_loss".split()
)

ARCHITECTURES = frozenset(
    {"KimiK3ForConditionalGeneration", "KimiK3ForCausalLM", "KimiLinearForCausalLM"}
)


class ConfigKeys:
    """One JSON object of the config; ``take_*`` marks a key as read, :meth:`finish` refuses the rest.

    Raises:
        K3Error K3-G001: missing or of the wrong kind; K3-G002: not supported.
    """

    def __init__(self, data: dict[str, Any], where: str) -> None:
        self._data, self._where = data, where
        self._taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self._data.get(key) is not None

    def name(self, key: str) -> str:
        """The key with the path to it, as errors show it."""
        return f"{self._where}{key}"

    def take(self, key: str) -> Any:
        """The value as it stands, None if absent."""
        self._taken.add(key)
        return self._data.get(key)

    def ignore(self, *keys: str) -> None:
        """Keys that have no effect on the text model, whatever their value."""
        self._taken.update(keys)

    def take_int(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least ``least``; null counts as absent."""
        value = self.take_optional_int(key, least=least)
        return self._present(key, default if value is None else value, f"an integer >= {least}")

    def take_optional_int(self, key: str, *, least: int = 1) -> int | None:
        """The same, or None where absent or null."""
        value = self.take(key)
        if value is not None and (type(value) is not int or value < least):
            self.wrong(key, f"an integer >= {least}")
        return value

    def take_float(self, key: str, default: float | None = None) -> float:
        """A finite number; null counts as absent."""
        value = self.take_optional_float(key)
        return self._present(key, default if value is None else value, "a number")

    def take_optional_float(self, key: str) -> float | None:
        """The same, or None where absent or null."""
        value = self.take(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not abs(value) < float("inf"):
            self.wrong(key, "a number")
        return float(value)

    def take_positive_float(self, key: str, default: float | None = None) -> float:
        """A finite number above zero; null counts as absent."""
        value = self.take_float(key, default)
        if value <= 0:
            self.wrong(key, "a number above 0")
        return value

    def take_strings(self, key: str) -> list[str]:
        """A list of texts; null and absent are an empty one."""
        value = self.take(key)
        if value is None:
            return []
        if not isinstance(value, list) or any(type(text) is not str for text in value):
            self.wrong(key, "a list of strings")
        return value

    def take_architectures(self) -> None:
        """HF's class names, where they are given: a model of this family."""
        if not set(self.take_strings("architectures")) <= ARCHITECTURES:
            self.refuse("architectures", f"some of {_listed(sorted(ARCHITECTURES))}")

    def take_bool(self, key: str, default: bool | None = None) -> bool:
        """true or false; null counts as absent."""
        value = self.take(key)
        if value is not None and type(value) is not bool:
            self.wrong(key, "true or false")
        return self._present(key, default if value is None else value, "true or false")

    def take_object(self, key: str) -> ConfigKeys:
        """A nested object, which must be there."""
        value = self.take(key)
        if not isinstance(value, dict):
            self.wrong(key, "an object")
        return ConfigKeys(value, f"{self._where}{key}.")

    def take_int_list(self, key: str) -> list[int]:
        """A list of whole numbers, which must be there."""
        value = self.take(key)
        if not isinstance(value, list) or any(type(n) is not int for n in value):
            self.wrong(key, "a list of integers")
        return value

    def take_choice(self, key: str, allowed: Collection[Any], default: Any = None) -> Any:
        """One of the values that are supported; null counts as absent."""
        value = self.take(key)
        if value is None and default is None:
            self.wrong(key, f"one of {_listed(allowed)}")
        value = default if value is None else value
        if not any(value == a and type(value) is type(a) for a in allowed):
            self.refuse(key, f"one of {_listed(allowed)}")
        return value

    def finish(self) -> None:
        """Refuse every key that nobody took."""
        unknown = sorted(set(self._data) - self._taken - BOOKKEEPING)
        if unknown:
            raise K3Error(
                "K3-G002",
                where=", ".join(self.name(key) for key in unknown),
                expected="only keys that k3compiler reads",
                found=", ".join(f"{key} = {self._data[key]!r}"[:120] for key in unknown),
                hint="remove a key only if it has no effect on the numbers",
            )

    def wrong(self, key: str, expected: str) -> NoReturn:
        """K3-G001 for this key."""
        raise K3Error("K3-G001", where=self.name(key), expected=expected, found=self.shown(key))

    def refuse(self, key: str, allowed: str, hint: str = "") -> NoReturn:
        """K3-G002 for this key's value."""
        raise K3Error(
            "K3-G002", where=self.name(key), expected=allowed, found=self.shown(key), hint=hint
        )

    def contradict(self, key: str, allowed: str, hint: str = "") -> NoReturn:
        """K3-G003 for this key's value."""
        raise K3Error(
            "K3-G003", where=self.name(key), expected=allowed, found=self.shown(key), hint=hint
        )

    def shown(self, key: str) -> str:
        """The key's value for a message."""
        return repr(self._data[key])[:200] if key in self._data else "no such key"

    def _present(self, key: str, value: T | None, expected: str) -> T:
        if value is None:
            self.wrong(key, expected)
        return value


def _listed(allowed: Collection[Any]) -> str:
    return ", ".join(repr(a) for a in allowed)
