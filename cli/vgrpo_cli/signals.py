"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

STDOUT = 1


class Interrupts:
    """Turn the first SIGINT or SIGTERM into a request to stop; the second one ends the process at once.

    While `loading` there is nothing to finish: the first one calls `give_up` and ends the process. Otherwise it calls `say`.
    Both run between any two instructions, so they may not wait for a lock.
    """

    def __init__(self) -> None:
        self.give_up: Callable[[], None] = lambda: None
        self.say: Callable[[], None] = lambda: None
        self.loading = True
        self.received = 0
        self.before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """Return what shells expect of a process that a signal stopped: 130 or 143."""
        return 128 + self.received

    def __enter__(self) -> Self:
        """Listen."""
        self.before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        """Leave signals as they were."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        for each in self.before:
            signal.signal(each, signal.SIG_DFL)
        self.received = number
        if not self.loading:
            self.say()
            return
        self.give_up()
        os.write(STDOUT, b"stopped while loading; nothing was written\n")
        os._exit(self.exit_code)  # an exception could be lost, or misread, anywhere in the import of a large library
