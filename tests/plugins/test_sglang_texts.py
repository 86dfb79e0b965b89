"""The ids of SGLang's requests so far, of which a step reads only the new ones."""

from __future__ import annotations

import gc
from array import array
from typing import Any

from anydraft.plugins.sglang.texts import Texts


class Ids:
    """Ids that count how many of them are read."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = array("q", ids)
        self.num_read = 0

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, part: Any) -> Any:
        found = self._ids[part]
        self.num_read += len(found) if isinstance(part, slice) else 1
        return found

    def extend(self, ids: list[int]) -> None:
        self._ids.extend(ids)


class Request:
    def __init__(self, prompt: list[int]) -> None:
        self.origin_input_ids_unpadded = Ids(prompt)
        self.output_ids = Ids([])


def test_prompt_and_output_grow_by_what_is_new() -> None:
    texts, request, written = Texts(), Request([7] * 50), []
    request.output_ids.extend([1])
    assert texts.ids(request).tolist() == [7] * 50 + [1]
    read = request.origin_input_ids_unpadded.num_read
    for step in range(200):
        new = [step] * (1 + step % 3)
        written += new
        request.output_ids.extend(new)
        assert texts.ids(request)[51:].tolist() == written
    assert texts.ids(request)[-1] == 199
    assert request.output_ids.num_read == 1 + len(written)
    assert request.origin_input_ids_unpadded.num_read == read, "the prompt is read once"


def test_requests_of_the_same_text_are_kept_apart() -> None:
    texts, one, other = Texts(), Request([1, 2]), Request([1, 2])
    one.output_ids.extend([3])
    assert (texts.ids(one).tolist(), texts.ids(other).tolist()) == ([1, 2, 3], [1, 2])
    other.output_ids.extend([4, 5])
    assert (texts.ids(one).tolist(), texts.ids(other).tolist()) == ([1, 2, 3], [1, 2, 4, 5])


def test_a_request_that_is_begun_anew_is_read_anew() -> None:
    texts, request = Texts(), Request([1, 2])
    request.output_ids.extend([3, 4, 5])
    texts.ids(request)
    request.output_ids = Ids([9])
    assert texts.ids(request).tolist() == [1, 2, 9]


def test_what_sglang_lets_go_of_is_forgotten() -> None:
    texts, requests = Texts(), [Request([1]), Request([2])]
    for request in requests:
        texts.ids(request)
    assert len(texts) == 2
    del requests[0], request
    gc.collect()
    assert len(texts) == 1
