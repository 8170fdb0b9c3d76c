"""Write the parts of the docs that follow from the code: `python docs/generate.py`."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from typer.main import get_command
from typer.testing import CliRunner

from vgrpo_cli import shipped
from vgrpo_cli.app import app
from vgrpo_cli.recipe_commands import needed
from vgrpo_cli.showing import facts, type_name
from vgrpo_compare import table as compared
from vgrpo_core import hookspecs
from vgrpo_core.hookspecs import HOOKS, KINDS
from vgrpo_core.offers import Offer
from vgrpo_core.schema import Table
from vgrpo_recipe.layout import LAYOUT, LISTS, WATCHED, title
from vgrpo_recipe.registry import Registry
from vgrpo_recipe.tables import At, dump

DOCS = Path(__file__).parent
LEVELS = ("0.6", "0.7", "0.8")  # of the tables of single changes
CHANGES = {"ablations": "One part off at a time", "study": "What keeps it up", "pairs": "Fewer pairs"}


def keys() -> str:
    """Render the tables of a recipe with their keys."""
    return "\n\n".join(_table(at, model, kind) for at, (model, kind) in LAYOUT.items())


def _table(at: At, model: type[Table], kind: str) -> str:
    header = f"[{title(at)}]" if at in LISTS else title(at)
    about = f"{inspect.getdoc(model)} The other keys are options of the plugin." if kind else inspect.getdoc(model)
    fields = model.model_fields.items()
    rows = [f"| `{name}` | {_type(field)} | {_default(name, field)} | {field.description} |" for name, field in fields]
    return "\n".join([f"### `{header}`", "", f"{about}", "", "| key | type | default | meaning |", "|---|---|---|---|", *rows])


def hooks() -> str:
    """Render the hooks with what they return and what a class of that kind must define."""
    rows = [
        f"| `{hook}()` | {_sentence(getattr(hookspecs, hook))} | `{KINDS[kind].__name__}` | {', '.join(_must(KINDS[kind]))} |"
        for kind, hook in HOOKS.items()
    ]
    return "\n".join(["| hook | what it is for | base class | to define, besides `name` |", "|---|---|---|---|", *rows])


def commands() -> str:
    """Render what `--help` prints for the command and each of its parts."""
    pages = [(path, CliRunner().invoke(app, [*path[1:], "--help"], prog_name="vgrpo").output) for path in _paths(get_command(app))]
    return "\n\n".join(f"```console\n$ {' '.join([*path, '--help'])}\n{page}```" for path, page in pages)


def _paths(command: Any, *above: str) -> Iterator[tuple[str, ...]]:
    path = (*above, command.name if above else "vgrpo")
    yield path
    for inner in getattr(command, "commands", {}).values():
        yield from _paths(inner, *path)


def options() -> str:
    """Render the plugins that come with vgrpo, with their options."""
    own = [offer for offer in Registry.discover().offers if offer.distribution == "vgrpo"]
    return "\n\n".join(_plugin(offer) for kind in KINDS for offer in sorted(own, key=lambda o: o.name) if offer.kind == kind)


def _plugin(offer: Offer) -> str:
    fields = offer.plugin.model_fields.items()
    rows = [f"| `{name}` | {_type(field)} | {_default(name, field)} | {field.description} |" for name, field in fields]
    table = ["", "| option | type | default | meaning |", "|---|---|---|---|", *rows] if rows else []
    extra = f'"{offer.plugin.extra}"' if "[" in offer.plugin.extra else offer.plugin.extra
    needs = ["", f"Needs `pip install {extra}`."] if extra else []
    return "\n".join([f"### {offer.kind} `{offer.name}`", "", _sentence(offer.plugin), *needs, *table])


def words() -> str:
    """Render the measured runs of the recipe `words`."""
    runs = json.loads((DOCS / "figures" / "words.json").read_text(encoding="utf-8"))
    labels = [label for label in runs[0]["start"] if label not in WATCHED]
    head = ["run", *(f"{label}: start, final, best" for label in labels), "iterations", "evaluations", "wall clock, s"]
    rows = [
        [
            f"`{' '.join(run['overrides'])}`",
            *(_scores(run, label) for label in labels),
            f"{run['iterations']}",
            f"{run['evaluations']:,}",
            f"{run['wall_seconds']:.0f}",
        ]
        for run in runs
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]
    return "\n".join([*lines, "", "Held-out means along the way:", "", *(_curve(run) for run in runs)])


def _scores(run: dict[str, Any], label: str) -> str:
    return ", ".join(f"{run[moment][label]:.3f}" for moment in ("start", "final", "best"))


def _curve(run: dict[str, Any]) -> str:
    curves = [
        f"{label} {', '.join(f'{value:.2f}' for _, value in points)}"
        for label, points in run["curve"].items()
        if label not in WATCHED
    ]
    iterations = ", ".join(str(iteration) for iteration, _ in next(iter(run["curve"].values())))
    return f"- `{' '.join(run['overrides'])}`, at iterations {iterations}: {'; '.join(curves)}"


def families() -> str:
    """Render the tested families of pipelines: what each needs of its own, and its default LoRA targets."""
    known = json.loads((DOCS / "figures" / "families.json").read_text(encoding="utf-8"))
    cells = [(row["family"], f"`{row['pipeline']}`", row["process"], "; ".join(row["exceptions"])) for row in known["families"]]
    rows = [f"| {' | '.join(row)} |" for row in cells]
    sharing: dict[str, list[str]] = {}
    for row in known["families"]:
        sharing.setdefault(", ".join(f"`{target}`" for target in row["targets"]), []).append(row["family"])
    targets = [f"| {', '.join(names)} | {layers} |" for layers, names in sharing.items()]
    head = ["| family | pipeline | network predicts | what it needs of its own |", "|---|---|---|---|"]
    below = ["", "Default LoRA targets, in every block:", "", "| family | layers |", "|---|---|"]
    return "\n".join([f"Tested with diffusers {known['diffusers']}.", "", *head, *rows, *below, *targets])


def recipes() -> str:
    """Render the recipes that come with vgrpo, and what each needs."""
    rows = [f"| `{name}` | {shipped.about(name)} | {needed(name).removeprefix('needs ')} |" for name in shipped.names()]
    return "\n".join(["| recipe | what it does | needs |", "|---|---|---|", *rows])


def samplers() -> str:
    """Render the errors of samplers on every family."""
    families = json.loads((DOCS / "figures" / "samplers.json").read_text(encoding="utf-8"))
    names = ["euler", "ddim", "dpmsolver++", "heun"]
    counts = list(families["Stable Diffusion 3"]["euler"])
    head = ["family", *(f"{name}: {' / '.join(counts)}" for name in names)]
    rows = [[family, *(_errors(found.get(name, {})) for name in names)] for family, found in families.items()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


def _errors(found: dict[str, float]) -> str:
    return " / ".join(f"{error:.4f}" for error in found.values())


def overhead() -> str:
    """Render what an iteration takes beyond the calls that it is made of, for each model, and the parts of a whole run."""
    found = json.loads((DOCS / "figures" / "overhead.json").read_text(encoding="utf-8"))
    parts = [name for name in next(iter(found.values())) if name != "beyond"]
    rows = [f"| {name} | {' | '.join(f'{model[name]:.3f} s' for model in found.values())} |" for name in parts]
    more = f"| more than its calls | {' | '.join(format(model['beyond'], '.1%') for model in found.values())} |"
    return "\n".join([f"| | {' | '.join(found)} |", f"| --- |{' --- |' * len(found)}", *rows, more, "", _profile()])


def _profile() -> str:
    found = json.loads((DOCS / "figures" / "profile.json").read_text(encoding="utf-8"))
    return "\n".join(["| | share of the run |", "| --- | ---: |", *(f"| {name} | {share:.1%} |" for name, share in found.items())])


def benchmark() -> str:
    """Render the comparison of objectives, and how much the surrogate varies."""
    found = json.loads((DOCS / "figures" / "benchmark.json").read_text(encoding="utf-8"))
    parts = [compared.about(found), compared.markdown(compared.scores(found)), "![Score against cost](figures/benchmark.svg)"]
    parts += [part for name, rows in compared.tables(found) for part in (f"**{name}**", compared.markdown(rows))]
    changed = [_changed(name, heading) for name, heading in CHANGES.items()]
    return "\n\n".join([*parts, *compared.notes(found), *changed, _variance()])


def _changed(name: str, heading: str) -> str:
    """Render a comparison of single changes: scores, and the median cost to reach some levels."""
    found = json.loads((DOCS / "figures" / f"{name}.json").read_text(encoding="utf-8"))
    first, *_ = entries = found["entries"]
    levels, *costs = zip(*(row for row in compared.levels(found, "cost", ranges=False) if row[0] in LEVELS), strict=True)
    rows = [["entry", "settings", "final score", "best score", *(f"cost to {level}" for level in levels)]]
    for entry, (label, *means), cost in zip(entries, (row[:3] for row in compared.scores(found)[1:]), costs, strict=True):
        rows.append([label, _settings(entry, first), *means, *cost])
    return "\n\n".join([f"### {heading}", compared.about(found), compared.markdown(rows), *compared.notes(found)])


def _settings(entry: dict[str, Any], first: dict[str, Any]) -> str:
    own = [override for override in entry["overrides"] if override not in first["overrides"]]
    return f"`{' '.join(own)}`" if own else "the recipe's"


def _variance() -> str:
    found = json.loads((DOCS / "figures" / "variance.json").read_text(encoding="utf-8"))
    rows = [
        f"| {name} | {' | '.join('{mean:.3f} ± {deviation:.3f}'.format(**kinds[kind]) for kind in ('overall', 'in_group'))} |"
        for name, kinds in found["variants"].items()
    ]
    return "\n".join(["### How much the surrogate varies", "", "| | overall | inside groups |", "| --- | --- | --- |", *rows])


def assets() -> str:
    """Render what rewards read that no package brings, from what each of them says."""
    own = [offer for offer in Registry.discover().offers if (offer.distribution, offer.kind) == ("vgrpo", "reward")]
    found = [(offer.name, asset) for offer in sorted(own, key=lambda o: o.name) for asset in facts(offer)["assets"] or []]
    rows = [f"| `{name}`{_given(asset)} | `{asset['name']}` | {asset['size']:g} GB | {asset['licence']} |" for name, asset in found]
    return "\n".join(["| reward | hub | size | licence |", "|---|---|---|---|", *rows])


def _given(asset: dict[str, Any]) -> str:
    return "".join(f", `{name} = {dump(value)}`" for name, value in asset["options"].items())


PARTS = {
    "benchmark.md": ("figures", benchmark),
    "offline.md": ("assets", assets),
    "performance.md": ("overhead", overhead),
    "samplers.md": ("errors", samplers),
    "recipe.md": ("keys", keys),
    "recipes.md": ("recipes", recipes),
    "plugins.md": ("hooks", hooks),
    "options.md": ("options", options),
    "cli.md": ("help", commands),
    "words.md": ("words", words),
    "families.md": ("families", families),
}


def rendered(page: str) -> str:
    """Return a page of the docs with its generated part brought up to date."""
    marker, render = PARTS[page]
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n\n{render()}\n\n{end}", text, flags=re.DOTALL)


def _type(field: FieldInfo) -> str:
    return type_name(field.annotation, "`")


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "the file's name" if name == "name" else "**required**"
    if field.default_factory is not None:
        return ""
    return "" if field.default is None else f"`{dump(field.default)}`"


def _sentence(function: Any) -> str:
    return (inspect.getdoc(function) or "").split("\n")[0]


def _must(base: Any) -> list[str]:
    members = {name: inspect.getattr_static(base, name) for name in sorted(base.__abstractmethods__)}
    return [f"`{name}`" if isinstance(member, property) else f"`{name}{_arguments(member)}`" for name, member in members.items()]


def _arguments(function: Any) -> str:
    return f"({', '.join(name for name in inspect.signature(function).parameters if name != 'self')})"


if __name__ == "__main__":
    for page in PARTS:
        (DOCS / page).write_text(rendered(page), encoding="utf-8")
