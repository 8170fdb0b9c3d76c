"""The trackers of a run that is going on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from vgrpo_core.errors import reason
from vgrpo_core.events import Evaluated, Event, Iterated, Metrics, Started, Warned
from vgrpo_core.recipe import Recipe

from .log import Log


class Tracks:
    """Log a run with every tracker that its recipe names. What fails is said once, and never ends the run.

    A tracker gets each line of metrics.jsonl once, in order. What it has missed, because it failed or was added when the run was
    resumed, it gets with the next line. Only the main rank may tell it events.
    """

    def __init__(self, recipe: Recipe, folder: Path, tell: Callable[[Event], None]) -> None:
        """Log the run in `folder`, and tell what went wrong."""
        self.recipe, self.folder, self.tell = recipe, folder, tell
        self.logs: list[Log] = []
        self.pictures: dict[int, Evaluated] = {}
        self.said: set[str] = set()

    def __enter__(self) -> Self:
        """Wait for the run to start."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Log what is left and close the trackers, whether the run ended, was stopped or failed."""
        from vgrpo_core.run import Stopped

        for log in self.logs:
            self._try(log.name, self._catch_up, log)
            self._try(log.name, log.close, error is not None and not isinstance(error, Stopped))

    def __call__(self, event: Event) -> None:
        """Follow one event."""
        match event:
            case Started():
                for name in dict.fromkeys(self.recipe.table.get("track", {}).get("with", ())):
                    self._try(name, self._start, name)
            case Evaluated() if self.logs:
                self.pictures[event.iteration] = event  # until its line is whole
            case Iterated():
                for log in self.logs:
                    self._try(log.name, self._catch_up, log, event.metrics)
                self.pictures.clear()

    def _start(self, name: str) -> None:
        self.logs.append(Log.start(name, self.recipe, self.folder))

    def _catch_up(self, log: Log, line: Metrics | None = None) -> None:
        """Log a line, after those before it that this tracker does not have."""
        from vgrpo_core.folder import Folder

        follows = line is not None and line["iteration"] == log.logged + 1
        for each in [line] if line is not None and follows else Folder(self.folder).lines():
            log.write(each, self.pictures.get(int(each["iteration"] or 0)))

    def _try(self, name: str, do: Callable[..., object], *given: object) -> None:
        try:
            do(*given)
        except Exception as error:  # whatever it is, the run is worth more
            said = f"tracker {name}: {reason(error)}"
            if said not in self.said:
                self.tell(Warned(said))
            self.said.add(said)
