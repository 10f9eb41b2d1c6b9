"""`UnicodeText`: Gymnasium's space of texts, over all characters that a Python text can hold."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Text
from gymnasium.vector.utils import read_from_shared_memory

from repl_env.common.display import set_module

# Characters of a sample that nobody gave a length for.
_SAMPLED = 100
_SURROGATES = range(0xD800, 0xE000)


class _CodePoints(Sequence[str]):
    """All characters, each at the index that is its code point, without a list of them."""

    def __len__(self) -> int:
        return sys.maxunicode + 1

    def __getitem__(self, index: Any) -> Any:
        try:
            return chr(index)
        except ValueError:
            raise IndexError(f"no character has the code point {index}") from None

    def __contains__(self, character: object) -> bool:
        return isinstance(character, str) and len(character) == 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CodePoints)

    def __hash__(self) -> int:
        return hash(_CodePoints)


@set_module("repl_env.integrations.gymnasium")
class UnicodeText(Text):
    """Texts of `min_length` to `max_length` characters of any kind.

    `gymnasium.spaces.Text` lists its characters; this space has them all, in the order of their
    code points. Flattened texts and those in shared memory are arrays of code points, padded by
    one that is no character.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        max_length: int,
        *,
        min_length: int = 0,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(max_length, min_length=min_length, seed=seed)
        self._all = _CodePoints()

    def contains(self, x: Any) -> bool:
        """Whether `x` is a text of an admitted length."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A text of random characters that can be encoded, of at most 100 unless it must be longer.

        `mask` and `probability` are those of `Text`, for the length; a choice of characters is a
        ValueError.
        """
        chosen = mask if mask is not None else probability
        length = None
        if chosen is not None:
            length, characters = chosen
            if characters is not None:
                raise ValueError("UnicodeText samples from all characters: give a length only")
        if length is None:
            max_length = min(self.max_length, max(self.min_length, _SAMPLED))
            length = int(self.np_random.integers(self.min_length, max_length + 1))
        codes = self.np_random.integers(len(self._all) - len(_SURROGATES), size=length)
        codes[codes >= _SURROGATES.start] += len(_SURROGATES)
        return "".join(map(chr, codes))

    @property
    def character_set(self) -> Any:
        """All characters."""
        return self._all

    @property
    def character_list(self) -> Any:
        """All characters, in the order of their code points."""
        return self._all

    def character_index(self, char: str) -> np.int32:
        """The code point of a character."""
        return np.int32(ord(char))

    @property
    def characters(self) -> Any:
        """All characters: a sequence in place of a text of a million."""
        return self._all

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length}, min_length={self.min_length})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, UnicodeText)
            and self.min_length == other.min_length
            and self.max_length == other.max_length
        )


class _SharedTexts(Sequence[str]):
    """Texts in the memory that `AsyncVectorEnv` shares with its processes; its copies are tuples.

    Gymnasium reads that memory once, when the environments are made, because what it reads of its
    own spaces are views of the memory. Of texts it would give those of that moment for ever.
    """

    def __init__(self, codes: np.ndarray, end: int) -> None:
        self._codes = codes
        self._end = end

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, index: Any) -> Any:
        codes = self._codes[index]
        length = int(np.argmax(codes == self._end)) if codes[-1] == self._end else len(codes)
        return codes[:length].tobytes().decode("utf-32", "surrogatepass")

    def __deepcopy__(self, memo: object) -> tuple[str, ...]:
        return tuple(self)


@read_from_shared_memory.register(UnicodeText)
def _read(space: UnicodeText, shared_memory: Any, n: int = 1) -> _SharedTexts:
    codes = np.frombuffer(shared_memory.get_obj(), dtype=np.int32).reshape(n, space.max_length)
    return _SharedTexts(codes, len(space.character_set))
