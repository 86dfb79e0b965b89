"""A pool of blocks for keys and values, and which blocks each row of the draft has."""

from __future__ import annotations

from collections.abc import Sequence


class BlockTables:
    """Rows of tokens in blocks of a fixed size; a row grows block by block.

    Args:
        num_blocks: of the pool; ids 0 to ``num_blocks - 1``.
        block_size: tokens a block.
        block_bytes: of one block in all layers.
    """

    def __init__(self, num_blocks: int, block_size: int, block_bytes: int = 0) -> None:
        self.num_blocks = num_blocks
        self.num_bytes = num_blocks * block_bytes
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._rows: list[list[int]] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    def fits(self, lengths: Sequence[int]) -> bool:
        """Whether rows of so many tokens have room at the same time."""
        return sum(self._blocks(length) for length in lengths) <= self.num_blocks

    def grow(self, row: int, length: int) -> list[int]:
        """The blocks of ``row``, after giving it enough for ``length`` tokens. It must fit."""
        while len(self._rows) <= row:
            self._rows.append([])
        blocks = self._rows[row]
        while len(blocks) < self._blocks(length):
            blocks.append(self._free.pop())
        return blocks

    def move_row(self, source: int, destination: int, length: int) -> None:
        """``destination`` takes over the blocks of ``source`` (all: ``length`` is theirs to keep)."""
        self._free_row(destination)
        self._rows[destination], self._rows[source] = self._rows[source], []

    def keep_rows(self, count: int) -> None:
        """Only the first ``count`` rows are in use; free what later ones have."""
        for row in range(count, len(self._rows)):
            self._free_row(row)
        del self._rows[count:]

    def _free_row(self, row: int) -> None:
        self._free.extend(reversed(self._rows[row]))
        self._rows[row] = []

    def _blocks(self, length: int) -> int:
        return -(-length // self.block_size)
