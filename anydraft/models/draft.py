"""The draft model at work: answers the asks of all requests in batched forwards.

Each request owns a row of the draft's KV cache. An ask brings the request's whole draft context; the
row keeps the longest prefix that it holds already and is fed the rest.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from anydraft.methods.base import Answer, Ask, Drafted, Expand, Rollout
from anydraft.models.select import Runner
from anydraft.vocab.tokenizer import Tokenizer


@dataclass
class _Row:
    """A request's row: ``fed`` are the ids whose keys and values it holds, from ``offset`` of the context on.

    ``offset`` is 0 until the context outgrows the draft's; then only a window of it is fed.
    """

    fed: list[int] = field(default_factory=list)
    offset: int = 0
    tree_context: int = 0
    tree_nodes: dict[tuple[int, ...], int] = field(default_factory=dict)


class ModelDraft:
    """A :class:`~anydraft.methods.base.DraftBackend` over a :class:`~anydraft.models.select.Runner`.

    Contexts longer than the draft's are windowed: the row restarts on the last half of what fits, so a
    draft never ends a request and the work of restarting is spread over many steps.
    """

    def __init__(self, runner: Runner, tokenizer: Tokenizer) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._rows: dict[Hashable, _Row] = {}
        self._order: list[Hashable] = []
        self._drawable = torch.arange(min(len(tokenizer.vocabulary), runner.vocab_size), device=runner.device)
        self.num_forwards = 0
        self.prefill_time = 0.0
        """Seconds spent on reading long new contexts, apart from the forwards that draw."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def on_kernels(self) -> bool:
        return self._runner.on_kernels

    @property
    def vocab_size(self) -> int:
        return self._runner.vocab_size

    @property
    def num_rows(self) -> int:
        """Rows in use: those of requests that asked and were not released."""
        return len(self._order)

    def answer(self, asks: Mapping[Hashable, Ask]) -> dict[Hashable, Answer]:
        for key in asks:
            if key not in self._rows:
                self._rows[key] = _Row()
                self._order.append(key)
        answers: dict[Hashable, Answer] = {}
        rollouts = {k: a for k, a in asks.items() if isinstance(a, Rollout)}
        if rollouts:
            answers.update(self._roll_out(rollouts))
        for key, ask in asks.items():
            if isinstance(ask, Expand):
                answers[key] = self._expand(key, ask)
        return answers

    def release(self, key: Hashable) -> None:
        """Forget a request; the last row moves into its place, so that rows stay contiguous."""
        if self._rows.pop(key, None) is None:
            return
        index, last = self._order.index(key), self._order.pop()
        if last != key:
            self._order[index] = last
            self._runner.cache.move_row(len(self._order), index, len(self._rows[last].fed))

    def _feed_list(self, row: _Row, context: Sequence[int], stable: int, room: int) -> list[int]:
        """Roll the row back to the longest prefix of ``context`` that it holds; return the ids to feed (>= 1)."""
        limit = self._runner.max_context - room
        if len(context) - row.offset > limit:
            row.offset = len(context) - max(limit // 2, 1)
            row.fed = []
        elif len(context) <= row.offset:
            row.offset, row.fed = max(len(context) - max(limit // 2, 1), 0), []
        length = len(context) - row.offset
        keep = max(min(stable - row.offset, len(row.fed), length), 0)
        while keep < len(row.fed) and keep < length and row.fed[keep] == context[row.offset + keep]:
            keep += 1
        keep = min(keep, length - 1)
        del row.fed[keep:]
        return list(context[row.offset + keep :])

    def _prefill(self, key: Hashable, new: list[int]) -> list[int]:
        """Feed all but the last id where there are many; what remains goes into the batched forward."""
        if len(new) <= 8:
            return new
        row = self._rows[key]
        started = time.perf_counter()
        self._runner.prefill(self._order.index(key), new[:-1], len(row.fed))
        self.prefill_time += time.perf_counter() - started
        row.fed.extend(new[:-1])
        return new[-1:]

    def _roll_out(self, asks: Mapping[Hashable, Rollout]) -> dict[Hashable, Answer]:
        feeds: dict[Hashable, list[int]] = {}
        for key, ask in asks.items():
            new = self._feed_list(self._rows[key], ask.context, ask.stable, ask.max_tokens + 1)
            feeds[key] = self._prefill(key, new)
        tokens: dict[Hashable, list[int]] = {key: [] for key in asks}
        survival: dict[Hashable, float] = dict.fromkeys(asks, 1.0)
        kept: dict[Hashable, list[torch.Tensor]] = {key: [] for key in asks}
        while feeds:
            only = _common_ids([asks[key] for key in feeds])
            logits = self._forward(feeds, only)
            following: dict[Hashable, list[int]] = {}
            for key, row_logits in logits.items():
                ask = asks[key]
                scores = row_logits if only is not None else self._drawable_scores(ask, row_logits)
                drawn, confidence = self._draw(ask, scores, len(tokens[key]), kept[key])
                if drawn is None:
                    continue
                survival[key] *= confidence
                tokens[key].append(drawn)
                more = len(tokens[key]) < ask.max_tokens and survival[key] >= ask.min_survival
                if more and drawn not in ask.stop_ids:
                    following[key] = [drawn]
            feeds = following
        return {
            key: Drafted(tuple(tokens[key]), torch.stack(kept[key]) if kept[key] else None) for key in asks
        }

    def _forward(
        self, feeds: Mapping[Hashable, list[int]], only: torch.Tensor | None
    ) -> dict[Hashable, torch.Tensor]:
        """One forward over the rows between the first and the last that is fed; the others stay as they are."""
        indices = sorted(self._order.index(key) for key in feeds)
        first, last = indices[0], indices[-1]
        keys = self._order[first : last + 1]
        ids = [feeds.get(key, []) for key in keys]
        starts = [len(self._rows[key].fed) for key in keys]
        logits = self._runner.forward(first, ids, starts, last_only=True, only=only)
        self.num_forwards += 1
        for key, new in feeds.items():
            self._rows[key].fed.extend(new)
        at = 0 if logits.shape[1] == 1 else None
        return {
            key: logits[i, at if at is not None else len(ids[i]) - 1] for i, key in enumerate(keys) if ids[i]
        }

    def _drawable_scores(self, ask: Rollout, logits: torch.Tensor) -> torch.Tensor:
        """The logits [A] of the ids that ``ask`` may draw, of all logits [V]."""
        return logits[: len(self._drawable)] if ask.allowed is None else logits[ask.allowed]

    def _draw(
        self, ask: Rollout, scores: torch.Tensor, drawn_before: int, kept: list[torch.Tensor]
    ) -> tuple[int | None, float]:
        """Draw one draft id from ``scores`` [A] of those that may be drawn, None where the row is not confident
        enough; and the row's largest probability (1.0 where nobody asks for it)."""
        allowed = self._drawable if ask.allowed is None else ask.allowed
        greedy = ask.temperature == 0
        if greedy and not ask.keep_rows and ask.min_confidence <= 0 and ask.min_survival <= 0:
            return int(allowed[int(scores.argmax())]), 1.0
        row = torch.softmax(scores.float() / (1.0 if greedy else ask.temperature), dim=-1)
        confidence = float(row.max())
        if confidence < ask.min_confidence:
            return None, confidence
        if greedy:
            index = int(row.argmax())
            if ask.keep_rows:
                row = torch.zeros_like(row)
                row[index] = 1.0
        else:
            assert ask.noise is not None, "a sampled rollout needs its request's noise"
            index = ask.noise.categorical(row, "draft", ask.position + drawn_before)
        if ask.keep_rows:
            kept.append(row)
        return int(allowed[index]), confidence

    def _expand(self, key: Hashable, ask: Expand) -> torch.Tensor:
        """Rows after each path; the nodes of one context's tree share their prefixes' keys and values."""
        row = self._rows[key]
        room = len(row.tree_nodes) + sum(len(path) for path in ask.paths) + 1
        fresh = self._feed_list(row, ask.context, ask.stable, room)
        wanted = sorted({path[: n + 1] for path in ask.paths for n in range(len(path))}, key=len)
        same_tree = (
            row.tree_context == len(ask.context) and len(fresh) == 1 and ask.stable >= len(ask.context)
        )
        if not same_tree:
            row.tree_nodes = {}
        row.tree_context = len(ask.context)
        index = self._order.index(key)
        rows: dict[tuple[int, ...], torch.Tensor] = {}
        if () in ask.paths or not same_tree:
            fresh = self._prefill(key, fresh)
            rows[()] = self._runner.forward(index, [fresh], [len(row.fed)], last_only=True)[0, -1]
            self.num_forwards += 1
        row.fed.extend(fresh)
        known = list(row.tree_nodes)
        new = [path for path in wanted if path not in row.tree_nodes]
        if new:
            nodes = known + new
            at = {path: i for i, path in enumerate(nodes)}
            logits = self._runner.forward_tree(
                index,
                [path[-1] for path in nodes],
                [len(path) - 1 for path in nodes],
                [at.get(path[:-1], -1) for path in nodes],
                len(row.fed),
                len(known),
            )
            self.num_forwards += 1
            row.tree_nodes = at
            rows.update({path: logits[i] for i, path in enumerate(new)})
        missing = [path for path in ask.paths if path not in rows]
        assert not missing, "a tree asks for each path once"
        scores = torch.stack([rows[path] for path in ask.paths])[:, : len(self._drawable)].float()
        return torch.softmax(scores / ask.temperature, dim=-1)


def _common_ids(asks: Sequence[Rollout]) -> torch.Tensor | None:
    """The ids that all of ``asks`` may draw, if that is one tensor: the LM head need compute no others."""
    first = asks[0].allowed
    return first if all(ask.allowed is first for ask in asks) else None
