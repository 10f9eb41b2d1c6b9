"""The space of texts: what is in it, samples, flattened texts."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from gymnasium.spaces import Dict, Text, flatdim, flatten, flatten_space, unflatten
from gymnasium.vector.utils import batch_space

from repl_env.integrations.gymnasium import UnicodeText

TEXTS = {
    "empty": "",
    "white space": " \t\r\n\x00",
    "composed": "é e\u0301",
    "right to left": "שלום مرحبا",
    "emoji": "👩‍👩‍👧‍👦",
    "ends of the planes": "\ud7ff\ue000\uffff\U0010ffff",
    "lone surrogate": "\ud800",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_text_is_in_the_space_and_survives_flattening(text):
    space = UnicodeText(20)
    assert space.contains(text) and text in space
    flat = flatten(space, text)
    assert flat in flatten_space(space) and len(flat) == flatdim(space) == 20
    assert unflatten(space, flat) == text


@pytest.mark.parametrize("thing", ["x", "x" * 6, None, b"xxx", ["x"] * 3, 3, np.array("xxx")])
def test_invalid_texts_are_not_in_the_space(thing):
    assert thing not in UnicodeText(5, min_length=2)


@pytest.mark.parametrize("bounds", [(0, 0), (0, 3), (7, 7), (0, 10**6), (150, 10**6)])
def test_samples_are_in_the_space_and_follow_from_its_seed(bounds):
    least, most = bounds
    space = UnicodeText(most, min_length=least, seed=1)
    drawn = [space.sample() for _ in range(50)]
    assert all(text in space and text.encode() is not None for text in drawn)
    assert max(map(len, drawn)) <= max(least, 100)
    space.seed(1)
    assert [space.sample() for _ in range(50)] == drawn


def test_length_of_a_sample_may_be_given_and_its_characters_may_not():
    space = UnicodeText(5)
    assert len(space.sample(mask=(4, None))) == len(space.sample(probability=(4, None))) == 4
    with pytest.raises(ValueError, match="length"):
        space.sample(mask=(4, np.ones(3, dtype=np.int8)))


def test_spaces_are_equal_by_their_lengths():
    space = UnicodeText(5, min_length=1)
    assert space == pickle.loads(pickle.dumps(space)) == UnicodeText(5, min_length=1)
    assert space not in (UnicodeText(5), UnicodeText(6, min_length=1), Text(5))
    assert "5" in repr(space) and len(repr(space)) < 50


def test_space_goes_into_others():
    pair = Dict({"question": UnicodeText(9), "code": UnicodeText(9)})
    value = {"question": "多少", "code": "x = 'é'"}
    flat = flatten(pair, value)
    assert dict(unflatten(pair, flat)) == value  # type: ignore[comparison-overlap]
    assert ("é", "") in batch_space(UnicodeText(1), 2)
