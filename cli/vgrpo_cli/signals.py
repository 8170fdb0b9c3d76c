"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from .launch import rank

STDOUT = 1


class Interrupts:
    """Turn the first SIGINT or SIGTERM into a request to stop; the second one ends the process at once.

    While `loading` there is nothing to finish: the first one calls `give_up` and ends the process. Otherwise it calls `say`.
    Both run between any two instructions, so they may not wait for a lock. For `patience` seconds the second is taken for the
    first: a launcher passes on the Ctrl-C that its processes have received already.
    """

    def __init__(self, patience: float = 0) -> None:
        self.patience, self.until = patience, 0.0
        self.give_up: Callable[[], None] = lambda: None
        self.say: Callable[[], None] = lambda: None
        self.loading = True
        self.received = 0
        self.before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """Return what shells expect of a process that a signal stopped: 130 or 143."""
        return 128 + (self.received or signal.SIGTERM)  # where another rank was asked

    def __enter__(self) -> Self:
        """Listen."""
        self.before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        """Leave signals as they were."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            self._again(number)
            return
        self.received, self.until = number, time.monotonic() + self.patience
        if not self.loading:
            self.say()
            return
        self.give_up()
        if rank() == 0:
            os.write(STDOUT, b"stopped while loading; nothing was written\n")
        os._exit(self.exit_code)  # an exception could be lost, or misread, anywhere in the import of a large library

    def _again(self, number: int) -> None:
        if time.monotonic() >= self.until:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
