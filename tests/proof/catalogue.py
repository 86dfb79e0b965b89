"""The worlds that every method and rule must get right."""

from __future__ import annotations

from dataclasses import replace

from anydraft.rules.params import SamplingParams
from tests.proof.worlds import MergeTokenizer, ToyTokenizer, World

_END = ("<eos>",)


def _sampled(**changes: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 3, **changes})  # type: ignore[arg-type]


# Vocabularies of 104 ids that differ in one; all but four ids never occur, so that the law stays small.
_REST = [f"x{n:02d}" for n in range(100)]
_NEVER = tuple(range(4, 104))

SAME = [
    World("same", ToyTokenizer(["a", "b", "ab"], _END), ToyTokenizer(["a", "b", "ab"], _END), seed=1),
    World(
        "same, padded target",
        ToyTokenizer(["a", "b", "ab"], _END),
        ToyTokenizer(["a", "b", "ab"], _END),
        padding=2,
        seed=2,
    ),
    World(
        "one id differs, cold draft",
        ToyTokenizer(["a", "b", "ab", "c", *_REST]),
        ToyTokenizer(["a", "b", "ab", "d", *_REST]),
        forbidden=_NEVER,
        forbidden_drafts=_NEVER,
        draft_temperature=0.5,
        seed=3,
    ),
]
"""Vocabularies that are nearly the same."""

SHARED = [
    World(
        "subset", ToyTokenizer(["a", "b", "ab", "aab"], _END), ToyTokenizer(["b", "ab", "a"], _END), seed=11
    ),
    World(
        "draft larger, with BOS",
        ToyTokenizer(["b", "a", "bb"]),
        ToyTokenizer(["a", "b", "ab", "ba"], ("<bos>",), bos="<bos>"),
        seed=12,
    ),
    World(
        "duplicate bytes",
        ToyTokenizer(["b", "a", "ab"], _END),
        ToyTokenizer(["a", "b", "a", "b", "ba"], _END),
        seed=13,
    ),
    World(
        "ambiguous segmentations",
        ToyTokenizer(["a", "aa", "aaa"]),
        ToyTokenizer(["aa", "a", "aaaa"]),
        prompt="aa",
        seed=14,
    ),
    World(
        "merges across the boundary",
        MergeTokenizer("abc", [("a", "b"), ("ab", "c")]),
        MergeTokenizer("cab", [("b", "c"), ("a", "bc")]),
        prompt="ca",
        seed=15,
    ),
    World(
        "half a character",
        ToyTokenizer(["a", "é", b"\xc3", b"\xa9"]),
        ToyTokenizer([b"\xa9", "a", b"\xc3", "aé"]),
        prompt="é",
        seed=16,
    ),
    World(
        "forbidden tokens",
        ToyTokenizer(["a", "b", "ab", "ba"]),
        ToyTokenizer(["ab", "a", "b"]),
        forbidden=(1,),
        seed=17,
    ),
    World(
        "top-k, repetition penalty",
        ToyTokenizer(["a", "b", "ab", "bb"], _END),
        ToyTokenizer(["bb", "b", "a"], _END),
        params=_sampled(top_k=3, repetition_penalty=1.8, temperature=0.8),
        seed=18,
    ),
    World(
        "top-p, min-p, presence and frequency penalties, bias",
        ToyTokenizer(["a", "b", "ab", "bb"]),
        ToyTokenizer(["bb", "b", "a", "ab"]),
        params=_sampled(
            top_p=0.9, min_p=0.05, presence_penalty=1.1, frequency_penalty=0.7, logit_bias={1: 1.5}
        ),
        seed=19,
    ),
    World(
        "min_tokens and allowed ids",
        ToyTokenizer(["a", "b", "ab"], _END),
        ToyTokenizer(["ab", "b", "a"], _END),
        params=_sampled(min_tokens=2, allowed_token_ids=[0, 2, 3]),
        seed=20,
    ),
    World(
        "blocks end in the middle",
        ToyTokenizer(["a", "b", "ab"], _END),
        ToyTokenizer(["b", "a"], _END),
        params=_sampled(max_tokens=2),
        num_speculative_tokens=2,
        capped=False,
        seed=21,
    ),
    World(
        "end tokens are ignored",
        ToyTokenizer(["a", "b"], _END),
        ToyTokenizer(["b", "a"], _END),
        params=_sampled(ignore_eos=True),
        seed=22,
    ),
    World(
        "stop id that is text",
        ToyTokenizer(["a", "b", "ab"]),
        ToyTokenizer(["b", "a", "ab"]),
        params=_sampled(stop_token_ids=[2]),
        capped=False,
        seed=23,
    ),
    World(
        "hot draft that gives up early",
        ToyTokenizer(["a", "b", "ab"], _END),
        ToyTokenizer(["b", "a", "ab"], _END),
        draft_temperature=1.7,
        min_confidence=0.4,
        seed=24,
    ),
    World(
        "long blocks",
        ToyTokenizer(["a", "b"]),
        ToyTokenizer(["b", "a", "ab"]),
        params=_sampled(max_tokens=4),
        num_speculative_tokens=3,
        seed=25,
    ),
    World(
        "greedy draft",
        ToyTokenizer(["a", "b", "ab"], _END),
        ToyTokenizer(["b", "a", "bb"], _END),
        draft_temperature=0.0,
        seed=26,
    ),
    World(
        "greedy request",
        ToyTokenizer(["a", "b", "ab"], _END),
        ToyTokenizer(["b", "a", "ab"], _END),
        params=_sampled(temperature=0.0, max_tokens=5, repetition_penalty=1.3),
        seed=27,
    ),
]
"""Vocabularies that share some tokens, so that every method applies but standard."""

DISJOINT = [
    World(
        "no token in common",
        ToyTokenizer(["aa", "bb", "ab"]),
        ToyTokenizer(["a", "b"]),
        prompt="aabb",
        seed=31,
    ),
    World(
        "no text in common",
        ToyTokenizer(["a", "b"], _END),
        ToyTokenizer(["c", "d"], ("<eos>", "<bos>"), bos="<bos>"),
        prompt="ab",
        seed=32,
    ),
]
"""Vocabularies that share no text token."""

WORLDS = [*SAME, *SHARED, *DISJOINT]

STRINGS = [world for world in WORLDS if world.name != "no text in common"]
"""Where some text of the draft begins with a token of the target."""

REPETITIVE = [replace(world, prompt=8 * world.prompt) for world in SHARED[:8]]
"""Where there is something to copy at first, and something else to draft when the output goes its own way."""


def world_named(name: str) -> World:
    return next(world for world in WORLDS if world.name == name)
