"""The report of a run that is going on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vgrpo_core.errors import VgrpoError, reason
from vgrpo_core.events import Evaluated, Event, Iterated, Warned

from .commands import NAME, write


def keep(event: Evaluated, folder: Path) -> None:
    """Write what the rewards said of the pictured images."""
    from .samples import save

    height, width = event.images.shape[2:]
    scores = {label: values.tolist() for label, values in event.judged.items()}
    save(folder, event.iteration, [prompt.text for prompt in event.prompts], scores, event.evidence, (width, height))


class Live:
    """Listen to a run and renew its report after each evaluation. What fails is said once, and never ends the run."""

    def __init__(self, folder: Path, tell: Callable[[Event], None]) -> None:
        """Write `report.html` in a run's folder, and tell what went wrong."""
        self.folder, self.tell = folder, tell
        self.due, self.said = False, ""

    def __call__(self, event: Event) -> None:
        """Note an evaluation; its numbers are on disk when the iteration is done."""
        if isinstance(event, Evaluated):
            self.due = True
            self._try(lambda: keep(event, self.folder))
        if isinstance(event, Iterated) and self.due:
            self.write()

    def write(self) -> None:
        """Write it now."""
        self.due = False
        self._try(lambda: write([self.folder], self.folder / NAME))

    def _try(self, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception as error:  # whatever it is, the run is worth more
            said = " ".join(str(error).split()) if isinstance(error, VgrpoError) else reason(error)
            if said != self.said:
                self.tell(Warned(f"no {NAME}: {said}"))
            self.said = said
