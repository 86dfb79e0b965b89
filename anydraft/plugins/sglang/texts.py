"""What SGLang's requests say so far; knows nothing of SGLang but the names of a request's ids."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from anydraft.plugins.requests import KnownTokens, TokenArray


class Texts:
    """Prompt and output of each request; a step reads of a request only what is new."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, KnownTokens] = WeakKeyDictionary()

    def __len__(self) -> int:
        """Requests that SGLang has not let go of."""
        return len(self._known)

    def ids(self, request: Any) -> TokenArray:
        """Int32 [n], to be read before the request is asked for again.

        Args:
            request: SGLang's, with ``origin_input_ids_unpadded`` and ``output_ids``.
        """
        prompt, output = request.origin_input_ids_unpadded, request.output_ids
        known = self._known.get(request)
        if known is None or len(known) > len(prompt) + len(output):  # SGLang may start a request anew
            known = self._known[request] = KnownTokens(prompt)
        known.append(output[len(known) - len(prompt) :])
        return known.ids
