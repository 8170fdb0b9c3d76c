"""The command `vgrpo`. Nothing here imports torch before a run needs it."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from vgrpo_core import VgrpoError
from vgrpo_report.commands import report
from vgrpo_use import commands as use

from . import mistakes, scaffold, shipped
from .launch import said_elsewhere
from .listing import say
from .pages import PLAIN, example
from .recipe_commands import recipes

app = typer.Typer(
    help="Align text-to-image models with rewards, as one TOML recipe says.",
    epilog="Start with: vgrpo run words",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # a plain traceback shows notes and no values of variables
    context_settings=PLAIN,
)
app.add_typer(recipes, name="recipes")
plugins = typer.Typer(
    help="List the plugins that recipes may use, or show one. Those that failed to load are listed on stderr.",
    epilog=example("plugins", "plugins --json"),
    context_settings=PLAIN,
    rich_markup_mode=None,
)
app.add_typer(plugins, name="plugins", invoke_without_command=True)

RecipeArgument = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped recipe.")]
SetOption = typer.Option("--set", metavar="KEY=VALUE", help="Override a value, such as run.seed=1; repeatable.")
Overrides = Annotated[list[str] | None, SetOption]


def main() -> None:
    """Run the command; an error that people can mend is one message on stderr and an exit code."""
    mistakes.warn_in_words()
    try:
        sys.exit(app(standalone_mode=False, prog_name="vgrpo"))
    except mistakes.UsageError as error:
        typer.echo(mistakes.worded(error, typer.main.get_command(app), sys.argv[1:]), err=True)
        sys.exit(VgrpoError.exit_code)
    except VgrpoError as error:
        if not said_elsewhere(error):
            typer.echo("\n".join([f"Error: {error}", *getattr(error, "__notes__", ())]), err=True)
        sys.exit(error.exit_code)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"vgrpo {version('vgrpo')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    asked: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(VgrpoError.exit_code)


@app.command(epilog=example("run words", "run words --set run.seed=1 --out runs/seed-1", "run words --resume"))
def run(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder. [default: runs/NAME, NAME-2, ...]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, or the last one of that name.")] = False,
) -> None:
    """Train what a recipe says.

    Ctrl-C finishes the iteration, saves, and says how to go on.
    """
    from .training import Asked, train

    raise typer.Exit(train(Asked(recipe, overrides or [], out, resume)))


@app.command(epilog=example("check words", "check words --memory --set batch.micro=72"))
def check(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    deep: Annotated[bool, typer.Option("--deep", help="Load the model too, and hold it against its own pipeline.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Say what memory it will take; no weights are read.")] = False,
    ranks: Annotated[int, typer.Option(min=1, metavar="N", help="Plan for N processes that train together.")] = 1,
) -> None:
    """Validate a recipe and print what it will load and cost. Nothing is loaded, but for --deep."""
    from vgrpo_recipe import load
    from vgrpo_recipe.plan import Plan

    from .planned import lines

    made = load(shipped.find(recipe), overrides or [])
    say(lines(Plan.of(made, ranks)), hang=13)
    if memory and not deep:  # which says it too
        from .training import settle

        settle()
        say(made.backbone.memory() or [f'backbone "{made.backbone.name}" does not say what memory it takes'])
    if deep:
        from .training import verify

        say(verify(made))


@app.command(
    epilog=example(
        "compare words --objectives vgrpo,awm --budget 60000",
        "compare words --objectives vgrpo,awm --seconds 120 --seeds 0,1",
    )
)
def compare(
    recipe: RecipeArgument,
    objectives: Annotated[str, typer.Option(metavar="ENTRY,...", help="What to compare: OBJECTIVE, or LABEL=OBJECTIVE.")],
    seeds: Annotated[str, typer.Option(metavar="N,...", help="The seeds of each entry.")] = "0,1,2",
    budget: Annotated[float | None, typer.Option(metavar="N", help="Network evaluations of each run's training.")] = None,
    seconds: Annotated[float | None, typer.Option(metavar="S", help="Seconds of each run's training, instead.")] = None,
    count: Annotated[str, typer.Option(metavar="WHAT", help="all: a backward counts as two; forwards: it does not.")] = "all",
    sweep: Annotated[str | None, typer.Option(metavar="KEY=V,V,...", help="Try values first: lr=1e-4,3e-4,1e-3.")] = None,
    sweep_budget: Annotated[float | None, typer.Option(metavar="N", help="Of each try. [default: half of the budget]")] = None,
    sweep_seed: Annotated[int | None, typer.Option(metavar="N", help="Of all tries. [default: none of --seeds]")] = None,
    sweep_set: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="For tries alone; repeatable.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="[LABEL:]KEY=VALUE", help="For all entries, or for one; repeatable.")
    ] = None,
    levels: Annotated[str | None, typer.Option(metavar="X,...", help="Scores to reach. [default: every 0.05]")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="LABEL", help="Run only these entries here; repeatable.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to. [default: compare/NAME]")] = None,
) -> None:
    """Compare objectives on one recipe, at equal cost.

    What is done already is not repeated: the same command goes on.
    """
    from vgrpo_compare.asked import Asked
    from vgrpo_compare.command import compare as run_all

    tries = (sweep, sweep_budget, sweep_seed, sweep_set or [])
    raise typer.Exit(
        run_all(Asked(recipe, objectives, seeds, budget, seconds, count, *tries, overrides or [], levels, only or [], out))
    )


app.command(epilog=example("report runs/words", "report runs/words runs/words-2 --out both.html"))(report)
app.command(epilog=example("sample words --prompt 'a red sign that says \"fox\"' --count 4", "sample words --seed 7"))(use.sample)
app.command(epilog=example("evaluate words", "evaluate words-2 --against words@last"))(use.evaluate)
app.command(epilog=example("export words --to words-model", "export words --to words-pipeline --full"))(use.export)


@app.command(epilog=example("serve ocr --option mode=word", "serve ocr --host 0.0.0.0 --token-env REWARD_TOKEN"))
def serve(
    reward: Annotated[str, typer.Argument(metavar="REWARD", help='"name", "distribution/name" or "./file.py:Class".')],
    options: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Set an option of the reward; repeatable.")
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; elsewhere a token is needed.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 takes any that is free.")] = 8800,
    token_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable that holds the token to ask for.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="Where the reward runs: auto, cpu, cuda, cuda:1, ...")] = "auto",
    images: Annotated[int, typer.Option(metavar="N", min=1, help="How many images a request may hold.")] = 64,
    attached: Annotated[bool, typer.Option("--attached", hidden=True)] = False,
) -> None:
    """Serve a reward over HTTP, for runs in other environments.

    Ctrl-C stops it.
    """
    from . import serving

    serving.serve(serving.Asked(reward, options or [], host, port, token_env, device, images, attached))


@app.command(epilog=example("score ocr sign.png --prompt 'a sign that says \"SALE\"'", "score jpeg_size *.png --json"))
def score(
    reward: Annotated[str, typer.Argument(metavar="REWARD", help='"name", "distribution/name" or "./file.py:Class".')],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES", help="Pictures, of any size and format.")],
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The prompt of all pictures. [default: an empty one]")] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A prompt for each picture, in order: .txt, .jsonl, .json or .csv.")
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of the reward; repeatable.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="Where to score: auto, cpu, cuda, cuda:1, ...")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON, with all their evidence.")] = False,
) -> None:
    """Score pictures with one reward."""
    from .scoring import Asked, lines

    for line in lines(Asked(reward, images, prompt, prompts, options or [], device), as_json=as_json):
        typer.echo(line)  # cut to 80 columns already, or JSON


@app.command(epilog=example("new reward glow", "new sampler my-steps --to plugins/my-steps"))
def new(
    kind: Annotated[
        scaffold.Kind, typer.Argument(metavar="KIND", help="What it is: reward, sampler or backbone.", show_default=False)
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="How recipes will call it; the package will be vgrpo-NAME.")],
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to write it. [default: vgrpo-NAME]")] = None,
) -> None:
    """Write a package with a small, working plugin, to be changed.

    Nothing is overwritten.
    """
    say([scaffold.next_steps(scaffold.new(kind, name, to))])


@plugins.callback()
def _plugins(context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False) -> None:
    if context.invoked_subcommand is None:
        from .showing import list_all

        list_all(as_json=as_json)


@plugins.command("show", epilog=example("plugins show ocr", "plugins show geneval --kind reward"))
def show_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A plugin, as recipes name it.")],
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only plugins of this kind, such as reward.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show what a plugin is, its options, and what it needs."""
    from .showing import lines

    for line in lines(name, kind, as_json=as_json):
        typer.echo(line)
