"""How a rectangular cache of rows and slots grows: by doubling, within a limit of bytes."""

from __future__ import annotations

_FIRST_SLOTS = 256


class Allocation:
    """Rows and slots of a cache, and what they may become. Holds no tensors: its owner allocates.

    Args:
        max_slots: no row ever needs more (the model's context, plus a block).
        slot_bytes: of one slot of one row over all layers; 0 while unknown, then no limit holds.
    """

    def __init__(self, max_slots: int, slot_bytes: int = 0) -> None:
        self.max_slots = max_slots
        self.slot_bytes = slot_bytes
        self.rows = 1
        self.slots = min(_FIRST_SLOTS, max_slots)
        self.limit: int | None = None
        """Bytes at most; None: as many as it takes."""

    def bytes_for(self, rows: int, slots: int) -> int:
        """Bytes of so many rows of so many slots."""
        return rows * slots * self.slot_bytes

    def fits(self, rows: int, slots: int) -> bool:
        """Whether so much may be allocated."""
        return self.limit is None or self.bytes_for(rows, slots) <= self.limit

    def grow(self, rows: int, slots: int) -> bool:
        """Have at least so many rows and slots; whether anything changed. Doubling, where that fits, keeps the
        copying of a growing row linear in its length."""
        if rows <= self.rows and slots <= self.slots:
            return False
        new_rows, new_slots = self.rows, self.slots
        while new_rows < rows:
            new_rows *= 2
        if new_slots < slots:
            new_slots = max(min(2 * new_slots, self.max_slots), slots)
        if self.limit is not None and not self.fits(new_rows, new_slots):
            new_rows = max(self.rows, rows)
            most = self.limit // self.bytes_for(new_rows, 1)
            new_slots = max(self.slots, slots, min(new_slots, most))
        self.rows, self.slots = new_rows, new_slots
        return True

    def make_room(self, rows: int, slots: int) -> bool:
        """Before another row comes in: give back what would keep ``rows`` rows of ``slots`` slots, the most that
        is going to be needed, from fitting; whether anything changed."""
        if self.fits(max(self.rows, rows), max(self.slots, slots)):
            return False
        self.rows, self.slots = min(self.rows, rows), min(self.slots, slots)
        return True
