"""Every shipped recipe is valid, those of the paper say what its tables say, and what recipes need is added up right."""

from __future__ import annotations

import itertools
import runpy
import shutil
from pathlib import Path

import pytest

from vgrpo_cli import needs, shipped
from vgrpo_cli.planned import lines
from vgrpo_recipe import load
from vgrpo_recipe.plan import Plan
from vgrpo_recipe.registry import Registry

NAMES = shipped.names()
STAGES = [f"paper-sd35m-{stage}" for stage in range(1, 6)]
EXPECTED = {
    "words", "sd35m-pickscore", "sd35m-ocr", "sd35m-geneval", *STAGES, "paper-flux", "sdxl-pickscore", "flux-multi",
    "wan-aesthetic", "single-24gb",
}  # fmt: skip

HUB = {  # the splits and the column of each, as their pages show them
    "CarperAI/pickapic_v1_no_images_training_sfw": ({"train"}, "caption"),
    "yuvalkirstain/pickapic_v1_no_images": (
        {"train", "validation", "test", "validation_unique", "test_unique"},
        "caption",
    ),
}


@pytest.fixture(scope="module")
def installed():
    return Registry.discover()


@pytest.fixture
def read(installed):
    return lambda name, *overrides: load(shipped.shipped(name), overrides, installed)


@pytest.fixture
def hub(monkeypatch):
    """Put a few rows in the place of each data set on the hub; any other name, or a split that it lacks, is an error."""
    import datasets

    def load_dataset(path, split, **others):
        splits, column = HUB[path]
        assert split in splits
        return datasets.Dataset.from_dict({column: ["a red cat", "a green chair", "two birds"], "rank": [1, 2, 3]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


def place(path: Path) -> None:
    """Put a file where a recipe looks for the prompts of others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('a sign that says "tree"\na book titled "Stone"\n')


def test_all_recipes_are_there():
    assert set(NAMES) == EXPECTED


def test_a_shipped_recipe_is_called_by_its_name_and_another_by_its_path(folder):
    assert shipped.called(shipped.find("words")) == "words"
    assert shipped.called(shipped.find("toy.toml")) == "toy.toml"


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_recipe_passes_the_check(name, hub, folder, installed):
    path = Path(shutil.copy(shipped.shipped(name), folder))
    recipe = load(path, (), installed)
    for each in (*recipe.prompts, *recipe.eval.prompts):
        if each.plugin.name == "file":
            place(each.plugin.path)
    plan = Plan.of(recipe)
    assert any(line.startswith("run ") for line in lines(plan))
    assert plan.prompts and plan.held_out


def test_without_the_prompts_of_others_the_check_says_which_file_is_missing(vgrpo):
    result = vgrpo("check", "paper-sd35m-5")
    assert (result.code, result.out) == (2, "")
    assert "DiffusionNFT/dataset/ocr/train.txt can not be read: No such file" in result.err


# The paper (arXiv 2604.23380): settings, table of stages

PAPER = {  # gradient steps, pairs, eta, KL weight
    "paper-sd35m-1": (150, 4, 3.0, 0.0),
    "paper-sd35m-2": (200, 10, None, 0.3),
    "paper-sd35m-3": (150, 4, 3.0, 0.0),
    "paper-sd35m-4": (50, 10, None, 0.3),
    "paper-sd35m-5": (30, 10, None, 0.3),
}


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_has_the_papers_values(name, read):
    recipe, (steps, pairs, eta, kl) = read(name), PAPER[name]
    objective = recipe.objective
    assert recipe.run.iterations * objective.steps == steps
    assert (objective.name, objective.pairs, objective.soft_clip, objective.kl, objective.clip) == ("vgrpo", pairs, eta, kl, None)
    assert (recipe.batch.group, recipe.batch.prompts) == (24, 48)
    assert (recipe.sampler.name, recipe.sampler.steps) == ("dpmsolver++", 40)
    assert recipe.optimizer.lr == 3e-4
    assert (recipe.backbone.lora.rank, recipe.backbone.lora.alpha) == (32, 64)
    assert not recipe.backbone.call and not recipe.backbone.eval_call  # no guidance


def test_the_stages_take_580_gradient_steps_and_53_8_evaluations_as_the_paper_counts_them(read):
    """Each sample: 40 in the rollout, N under the old weights, N under the new ones."""
    recipes = [read(name) for name in STAGES]
    steps = [recipe.run.iterations * recipe.objective.steps for recipe in recipes]
    counts = [recipe.sampler.steps + 2 * recipe.objective.pairs for recipe in recipes]
    assert counts == [48, 60, 48, 60, 60]
    assert sum(steps) == 580
    assert sum(count * step for count, step in zip(counts, steps, strict=True)) / 580 == pytest.approx(53.8, abs=0.05)


def test_a_sample_is_in_one_gradient_step_as_in_the_paper(read):
    for recipe in map(read, [*STAGES, "paper-flux"]):
        assert recipe.objective.split or recipe.objective.steps == 1


def test_where_kl_is_all_that_holds_a_stage_there_is_a_second_step_for_it_to_act_in(read):
    assert all(recipe.objective.steps > 1 for recipe in map(read, STAGES) if recipe.objective.kl)


def test_the_stages_rewards_are_the_papers(read):
    rewards = [[entry.offer.name for entry in read(name).rewards] for name in STAGES]
    human = ["hpsv2", "pickscore", "clipscore"]
    assert rewards == [human, ["geneval"], human, ["geneval"], ["ocr"]]
    assert read("paper-sd35m-1").rewards[0].plugin.version == "2.1"


def test_stage_1_draws_720_pixels(read):
    assert read("paper-sd35m-1").backbone.size == (720, 720)


def test_the_flux_run_has_the_papers_values(read):
    recipe = read("paper-flux")
    assert (recipe.run.iterations, recipe.sampler.name, recipe.sampler.steps) == (300, "dpmsolver++", 16)
    assert (recipe.objective.pairs, recipe.batch.group, recipe.backbone.lora) == (4, 12, None)
    assert recipe.objective.steps > 1 and 6e-3 <= recipe.objective.clip <= 1e-2 and recipe.objective.kl == 0
    assert [entry.offer.name for entry in recipe.rewards] == ["hpsv2", "pickscore", "imagereward", "unifiedreward"]
    assert "clipscore" in [entry.offer.name for entry in recipe.eval.rewards]
    assert recipe.combine.use == "normalize_then_sum"


def test_each_stage_begins_with_the_run_of_the_one_before(read, folder):
    assert read(STAGES[0]).run.init is None
    for before, name in itertools.pairwise(STAGES):
        assert read(name).run.init == folder / "runs" / read(before).run.name


def test_the_stages_train_the_same_adapters(read):
    trained = {(recipe.backbone.model, recipe.backbone.dtype, recipe.backbone.lora) for recipe in map(read, STAGES)}
    assert len(trained) == 1


@pytest.mark.parametrize("name", sorted(EXPECTED - {"words"}))
def test_it_is_said_which_numbers_are_our_choice(name):
    assert "our choice" in shipped.shipped(name).read_text(encoding="utf-8").lower()
    assert shipped.about(name).endswith(".")


# What recipes need


def sd35_medium(side: int) -> int:
    """Count by hand: 24 blocks of width 1536, 13 of them with a second attention; patches of 2 x 2 latents, 333 tokens of text."""
    image, text, d, blocks, dual = (side // 16) ** 2, 333, 1536, 24, 13
    before = image * d * 64 + text * 4096 * d + (256 + d + 2048 + d) * d
    modulation = d * d * (9 * dual + 6 * (blocks - dual) + 6 * (blocks - 1) + 2)
    projections = blocks * d * d * (4 * image + 3 * text) + (blocks - 1) * d * d * text + dual * 4 * d * d * image
    attention = blocks * 2 * (image + text) ** 2 * d + dual * 2 * image**2 * d
    feed_forward = 8 * d * d * (blocks * image + (blocks - 1) * text)
    after = 2 * d * d + image * d * 64
    return 2 * (before + modulation + projections + attention + feed_forward + after)


@pytest.mark.parametrize(("name", "side"), [("sd35m-ocr", 512), ("paper-sd35m-1", 720)])
def test_the_operations_of_a_forward_pass_are_those_counted_by_hand(name, side, read):
    assert needs.operations(read(name)) == pytest.approx(sd35_medium(side), rel=1e-9)


def test_a_video_costs_its_latent_frames(read):
    """The first frame, and one for every four that follow: 17 frames are 5, a single one is 1."""
    video, image = read("wan-aesthetic"), read("wan-aesthetic", "backbone.call.num_frames=1")
    constant, each, pair = needs.table()["models"][video.backbone.model]["operations"]
    latents = 60 * 104
    assert needs.operations(image) == pytest.approx(constant + each * latents + pair * latents**2)
    assert needs.operations(video) == pytest.approx(constant + each * 5 * latents + pair * (5 * latents) ** 2)


def test_hours_are_operations_times_passes_times_iterations_over_the_rate(read):
    """Of sd35m-ocr: 1,152 images; rollout 16, update 10 x (2 - 1/2), and 10 backwards of 1 for LoRA and 1 for checkpointing."""
    recipe = read("sd35m-ocr")
    assert needs.passes(recipe) == 1152 * (16 + 15 + 10 * 2)
    assert needs.hours(recipe) == pytest.approx(sd35_medium(512) * 1152 * 51 * 60 / (0.4 * 989e12) / 3600)


def test_full_fine_tuning_pays_two_passes_for_a_backward_and_one_for_checkpointing(read):
    """Of paper-flux: 384 images; rollout 16, update 4 x (2 - 1/4), and 4 backwards of 3."""
    assert needs.passes(read("paper-flux")) == 384 * (16 + 7 + 4 * 3)
    assert needs.passes(read("paper-flux", "backbone.gradient_checkpointing=false")) == 384 * (16 + 7 + 4 * 2)


def test_the_memory_of_all_weights_is_what_the_check_estimates(read):
    """The estimate counts a step of 4 bytes for each tensor besides."""
    from vgrpo_diffusers.memory import estimate

    recipe = read("words")
    found = needs.memory(recipe)
    sizes = estimate(recipe.backbone)
    counters = sizes["optimizer"] - 2 * sizes["gradients"]
    assert (found.stays, found.visits, found.divided) == (sum(sizes.values()) - counters, 0, 0)


def test_the_memory_of_adapters_is_added_up_by_hand(read):
    """Frozen weights in bfloat16, the VAE in float32, and of each of 32 x 586,752 adapter weights value, gradient, two moments."""
    parts = needs.table()["models"]["stabilityai/stable-diffusion-3.5-medium"]["components"]
    frozen = parts["transformer"]["bfloat16"]
    encoders = sum(parts[name]["bfloat16"] for name in ("text_encoder", "text_encoder_2", "text_encoder_3"))
    adapters = 32 * 586_752 * 16
    whole, spare = needs.memory(read("sd35m-ocr")), needs.memory(read("single-24gb"))
    assert whole.stays == frozen + encoders + parts["vae"]["float32"] + adapters
    assert (spare.stays, spare.visits) == (frozen + adapters, encoders)
    assert spare.stays + spare.visits < 24e9 / 1.3  # a quarter of the card is left for the reward and activations


def test_what_is_sharded_is_weights_gradients_and_moments_in_float32(read):
    found = needs.memory(read("paper-flux"))
    assert found.divided == pytest.approx(16 * 11.9e9, rel=1e-3)
    assert needs.memory(read("paper-flux", "optimizer.bits=8")).divided == pytest.approx(10 * 11.9e9, rel=1e-3)


def test_the_table_has_the_totals_that_were_measured_before():
    """Measured on the meta device, apart from this table: 2.24 and 11.9 billion weights; 191 and 342 layers with adapters."""
    models = needs.table()["models"]
    sd35, flux = models["stabilityai/stable-diffusion-3.5-medium"], models["black-forest-labs/FLUX.1-dev"]
    assert round(sd35["components"]["transformer"]["weights"] / 1e9, 2) == 2.24
    assert round(flux["components"]["transformer"]["weights"] / 1e9, 1) == 11.9
    (small,), (large,) = sd35["adapters"].values(), flux["adapters"].values()
    assert (small["layers"], round(32 * small["weights"] / 1e6, 1)) == (191, 18.8)
    assert (large["layers"], round(64 * large["weights"] / 1e6)) == (342, 179)


def test_the_table_is_what_its_script_counts_on_the_networks():
    """Of one network; at another size than those that the parabola was laid through."""
    sizes = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "sizes.py"))
    model = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"
    known, module = needs.table()["models"][model], sizes["empty"](sizes["MODELS"][model]["transformer"])
    assert sizes["size"](module) == known["components"]["transformer"]
    assert sizes["adapter"](module, ()) == known["adapters"][""]
    latents = 40 * 56
    expected = sum(factor * latents**power for power, factor in enumerate(known["operations"]))
    assert sizes["counted"](model, module, (40, 56)) == pytest.approx(expected, rel=1e-9)


def test_the_time_of_words_is_that_of_its_page():
    sizes = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "sizes.py"))
    assert needs.table()["measured"] == sizes["measured"](), "run python benchmarks/sizes.py"


# vgrpo recipes


def test_the_list_says_what_each_recipe_needs_and_fits_80_columns(vgrpo):
    found = vgrpo("recipes").out.splitlines()
    assert max(map(len, found)) <= 80
    blocks = [found.index(name) for name in NAMES]
    assert blocks == sorted(blocks)
    for begin in blocks:
        after = [line for line in found[begin + 1 : begin + 8] if line.startswith("  needs ")]
        assert after and "GB" in after[0]
    assert "measured on 2 CPU cores" in " ".join(" ".join(found).split())


def test_a_recipe_that_can_not_be_read_here_is_listed_all_the_same(vgrpo, folder, monkeypatch):
    (folder / "odd.toml").write_text("# An odd one.\n[run]\niterations = 1\n")
    (folder / "toy.toml").unlink()
    monkeypatch.setattr(shipped, "FOLDER", folder)
    result = vgrpo("recipes")
    assert result.code == 0
    assert result.out.startswith("odd\n  An odd one.\n  needs what is not here: `vgrpo check odd` says it\n")


@pytest.mark.parametrize("command", ["list", "show", "copy"])
def test_help_ends_with_an_example(vgrpo, command):
    assert f"Example: vgrpo recipes {command}" in vgrpo("recipes", command, "--help").out
