from __future__ import annotations

import pytest

from vgrpo_compare.asked import Asked, read
from vgrpo_core import RecipeError, VgrpoError


def mistakes(**asked):
    with pytest.raises(RecipeError) as caught:
        read(Asked("toy.toml", **{"objectives": "vgrpo", "budget": 1000, **asked}))
    return list(caught.value.mistakes)


def recipe(label, *, sweep=None, **asked):
    """The recipe of an entry's first run."""
    comparison = read(Asked("toy.toml", budget=960, sweep=sweep, **asked))
    entry = next(entry for entry in comparison.entries if entry.label == label)
    jobs = comparison.swept(entry) if sweep else comparison.seeded(entry, None)
    return jobs[0].recipe(comparison.common)


def test_all_mistakes_are_told_at_once():
    found = mistakes(
        objectives="vgrpo,many=vgrpo,other=vgrpoo,vgrpo,9x",
        seeds="0,x",
        budget=None,
        count="both",
        levels="high",
        sweep="lr=1e-4",
        sweep_budget=-1,
        only=["may"],
        sets=["mnay:objective.pairs=8", "run.seed=2", "many:objective.use=x", "many:eval.samples=3", "objective.pears=1"],
    )
    assert found == [
        '--objectives: the label "vgrpo" is taken; write "another=" before one of them',
        '--objectives: "9x" is no entry; write OBJECTIVE or LABEL=OBJECTIVE, the label in letters, digits, - or _',
        '--set mnay:objective.pairs=8: no entry "mnay"; did you mean "many"?',
        "--set run.seed=2: --seeds names the seeds",
        "--set many:objective.use=x: --objectives names the objectives",
        "--set many:eval.samples=3: all entries are judged alike; write it without many:",
        "--seeds 0,x: write whole numbers from 0 with commas between, such as 0,1,2",
        "--levels high: write numbers with commas between, such as 0.6,0.7",
        "--sweep-budget -1: it has to be above 0",
        "give one of the two: --budget, in network evaluations of a run, or --seconds",
        "--count both: write all or forwards",
        "--sweep lr=1e-4: write a key and two values or more, such as lr=1e-4,3e-4,1e-3",
        '--only may: no entry "may"; did you mean "many"?',
        'vgrpo: --set objective.pears=1: [objective] unknown key "pears"; did you mean "pairs"?',
        'many: --set objective.pears=1: [objective] unknown key "pears"; did you mean "pairs"?',
        found[-1],
    ]
    assert found[-1].startswith('other: --objectives other=vgrpoo: [objective] no objective named "vgrpoo"; did you mean "vgrpo"?')


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"sets": ["optimizer.lr=fast"]}, '--set optimizer.lr=fast: [optimizer] lr is "fast": input should be a valid number'),
        ({"objectives": "a=vgrpo,b=vgrpo", "sets": ["objective.pairs=0"]}, "--set objective.pairs=0: [objective] pairs is 0: "),
        (
            {"objectives": "a=vgrpo,b=vgrpo", "sets": ["b:objective.pairs=0"]},
            "b: --set b:objective.pairs=0: [objective] pairs is 0: ",
        ),
        (
            {"objectives": "a=vgrpo,b=vgrpo", "sweep": "objective.pair=1,2"},
            '--sweep objective.pair=1: [objective] unknown key "pair"',
        ),
        (
            {"sweep": "lr=1e-3,1e-2", "sweep_set": ["eval.sample=1"]},
            'vgrpo: --sweep-set eval.sample=1: [eval] unknown key "sample"',
        ),
        ({"sweep_seed": 4}, "--sweep-seed needs --sweep"),
        ({"sweep": "run.seed=1,2"}, "--sweep run.seed=1,2: --seeds names the seeds"),
        ({"seeds": "1,1"}, "--seeds 1,1: one is named twice"),
        ({"seconds": 3.0}, "give one of the two: --budget"),
    ],
)
def test_a_mistake_is_told_once_in_the_words_that_asked_for_it(asked, found):
    assert mistakes(**asked)[0].startswith(found)


def test_a_recipe_that_is_not_there_is_told_as_elsewhere():
    with pytest.raises(VgrpoError, match="no such file"):
        read(Asked("./tor.toml", "vgrpo", budget=1))


def test_the_recipes_own_objective_keeps_its_table_and_another_starts_from_its_defaults(folder):
    objectives = "vgrpo,few=vgrpo,step=./plugins.py:Stepwise"
    sets = ["objective.clip=0.1", "few:objective.pairs=1"]
    found = {label: recipe(label, objectives=objectives, sets=sets) for label in ("vgrpo", "few", "step")}
    assert [(each.objective.name, each.objective.pairs, each.objective.clip) for each in found.values()] == [
        ("vgrpo", 2, 0.1),
        ("vgrpo", 1, 0.1),
        ("stepwise", 4, 0.1),
    ]


def test_an_objective_of_noisy_steps_brings_its_sampler_for_training_alone():
    asked = {"objectives": "vgrpo,step=./plugins.py:Stepwise", "sets": ["sampler.steps=3", "step:sampler.noise=0.2"]}
    plain, step = (recipe(label, **asked) for label in ("vgrpo", "step"))
    assert (plain.sampler.name, step.sampler.name, step.sampler.steps, step.sampler.noise) == ("toy", "noisy", 3, 0.2)
    for found in (plain, step):
        assert (found.eval.sampler.name, found.eval.sampler.steps) == ("toy", 3)


def test_a_sampler_of_the_recipe_that_draws_enough_noise_is_kept():
    sets = ["sampler.use=./plugins.py:Noisy", "sampler.noise=0.3"]
    found = recipe("step", objectives="step=./plugins.py:Stepwise", sets=sets)
    assert (found.sampler.noise, found.eval.sampler.noise) == (0.3, 0.3)


def test_the_sampler_of_evaluation_that_a_recipe_names_judges_all(folder):
    with (folder / "toy.toml").open("a") as file:
        file.write('\n[eval.sampler]\nuse = "./plugins.py:Noisy"\nsteps = 5\n')
    found = recipe("few", objectives="vgrpo,few=vgrpo", sets=["few:sampler.steps=1"])
    assert (found.sampler.steps, found.eval.sampler.name, found.eval.sampler.steps) == (1, "noisy", 5)


def test_a_runs_length_follows_from_the_budget_and_evaluations_are_about_ten():
    found = recipe("vgrpo", objectives="vgrpo")  # 960 at 96 an iteration
    assert (found.run.iterations, found.eval.every) == (10, 1)
    assert recipe("vgrpo", objectives="vgrpo", count="forwards").run.iterations == 20  # at 48
    assert recipe("vgrpo", objectives="vgrpo", sweep="lr=0.1,0.2").run.iterations == 5
    assert recipe("vgrpo", objectives="vgrpo", sweep="lr=0.1,0.2", sweep_budget=200).run.iterations == 2
    assert recipe("vgrpo", objectives="vgrpo", sets=["batch.group=2", "eval.every=7"]).eval.every == 7
    assert recipe("vgrpo", objectives="vgrpo", sets=["objective.pairs=1", "sampler.steps=1"]).eval.every == 2  # 20 iterations


def test_a_sweep_takes_another_seed_and_its_own_prompts():
    asked = {
        "objectives": "vgrpo",
        "sweep": "lr=0.1,0.2",
        "sweep_set": ["eval.prompts.use=./toy.py:ToyPrompts", "eval.prompts.count=2"],
    }
    found = recipe("vgrpo", seeds="0,2", **asked)
    assert (found.run.seed, found.optimizer.lr, found.eval.prompts[0].plugin.count) == (1, 0.1, 2)
    assert recipe("vgrpo", sweep_seed=9, **asked).run.seed == 9
