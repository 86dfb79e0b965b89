"""Will these two work together, and how well? Answered from tokenizers and configs, without weights."""

from __future__ import annotations

from collections.abc import Mapping

from anydraft.bench.advice import advise
from anydraft.bench.best_case import best_case
from anydraft.bench.controls import control_pairs
from anydraft.bench.lost import lost_tokens, script_overlap
from anydraft.bench.report import CheckReport, TextReport, VocabularyReport
from anydraft.bench.side import describe_side, gives_back
from anydraft.models.describe import ModelInfo
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.readers import read_tokenizer
from anydraft.vocab.tokenizer import Tokenizer

OWN_TEXT = "your text"

_MOST_LOST = 12
_MOST_DIFFERING = 5


def check(
    target: ModelInfo, draft: ModelInfo, texts: Mapping[str, str], own_text: str | None = None
) -> CheckReport:
    """Analyse a pair.

    Args:
        texts: kind -> a sample of it, such as :func:`anydraft.bench.samples.sample_texts`; not empty.
        own_text: text of the kind that the user generates; if given, the advice goes by it alone.

    Raises:
        TokenizerError: the bytes of a side's tokens cannot be had.
    """
    target_tokenizer = read_tokenizer(target.hf_tokenizer, stop_ids=target.stop_ids)
    draft_tokenizer = read_tokenizer(draft.hf_tokenizer, stop_ids=draft.stop_ids)
    bridge = Bridge(target_tokenizer.vocabulary, draft_tokenizer.vocabulary)
    own = {} if own_text is None else {OWN_TEXT: own_text}
    reports = tuple(
        _text(kind, text, target_tokenizer, draft_tokenizer, bridge)
        for kind, text in {**own, **texts}.items()
    )
    sides = describe_side(target, target_tokenizer), describe_side(draft, draft_tokenizer)
    vocabulary = _vocabulary(bridge, target, draft)
    return CheckReport(
        target=sides[0],
        draft=sides[1],
        vocabulary=vocabulary,
        controls=control_pairs(bridge),
        texts=reports,
        scripts=script_overlap(bridge),
        advice=advise(bridge, *sides, vocabulary, reports[: len(own) or len(texts)]),
    )


def _vocabulary(bridge: Bridge, target: ModelInfo, draft: ModelInfo) -> VocabularyReport:
    relation = "same" if bridge.same_vocabulary else "nearly the same" if bridge.nearly_same else "different"
    return VocabularyReport(
        relation=relation,
        num_common_ids=bridge.num_common,
        num_differing_ids=len(bridge.differing),
        differing_ids=tuple(int(i) for i in bridge.differing[:_MOST_DIFFERING]),
        equal_size=target.vocab_size == draft.vocab_size,
        target_overlap=bridge.target_overlap,
        draft_overlap=bridge.draft_overlap,
    )


def _text(kind: str, text: str, target: Tokenizer, draft: Tokenizer, bridge: Bridge) -> TextReport:
    target_ids, draft_ids = target.encode(text), draft.encode(text)
    num_bytes = len(text.encode())
    expressible = sum(bool(bridge.target_to_draft[i] >= 0) for i in target_ids)
    allowed = sum(bool(bridge.draft_to_target[i] >= 0) for i in draft_ids)
    return TextReport(
        kind=kind,
        num_bytes=num_bytes,
        target_tokens=len(target_ids),
        draft_tokens=len(draft_ids),
        expressible=expressible / len(target_ids),
        forbidden=1 - allowed / len(draft_ids),
        target_bytes_per_token=num_bytes / len(target_ids),
        draft_bytes_per_token=num_bytes / len(draft_ids),
        best=best_case(text, target, draft, bridge),
        target_exact=gives_back(target, text),
        draft_exact=gives_back(draft, text),
        lost=lost_tokens(bridge, target_ids, _MOST_LOST),
    )
