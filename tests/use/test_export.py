"""`vgrpo export` hands over what was trained: the Python on its card draws what the run draws."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from vgrpo_core.folder import Folder
from vgrpo_core.keys import generator
from vgrpo_diffusers.policy import PipelinePolicy
from vgrpo_recipe import load
from vgrpo_use import pipelines
from vgrpo_use.export import Asked, export

WEIGHTS = "pytorch_lora_weights.safetensors"


def card(folder):
    """The front matter and the text of a model card."""
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(front), text


def draw(pipe, run, steps=3):
    """Images of the held-out prompts by a plain pipeline, with the noise of the run's evaluation."""
    pipe.set_progress_bar_config(disable=True)
    prompts = (run.folder.parents[1] / "prompts.txt").read_text().splitlines()
    noise = [generator(0, "eval", row, 0) for row in range(len(prompts))]
    call = {"guidance_scale": 1.0, "height": 24, "width": 64, "max_sequence_length": 1, "num_inference_steps": steps}
    return pipe(prompts, **call, generator=noise, output_type="pt").images


def of_card(folder):
    """What the Python block of a card leaves behind, run beside the exported folder."""
    code = re.search(r"```python\n(.*?)```", card(folder)[1], re.DOTALL)[1]
    found = {}
    exec(compile(code, "card", "exec"), found)
    return found


def draws_what_the_run_drew(folder, run):
    found = of_card(folder)
    assert found["image"].size == (64, 24)
    torch.testing.assert_close(draw(found["pipe"], run), run.images[1], rtol=0, atol=1e-5)
    assert (run.images[0] - run.images[1]).abs().max() > 1e-2
    return True


def test_the_python_on_the_card_loads_adapters_that_draw_what_the_run_drew(glyphs_runs, exported, monkeypatch):
    monkeypatch.chdir(exported.parent)
    assert draws_what_the_run_drew(Path("mine"), glyphs_runs["lora"])
    assert (exported / WEIGHTS).is_file()


@pytest.mark.parametrize(("kind", "words"), [("lora", ["--full"]), ("full", [])])
def test_the_python_on_the_card_loads_a_pipeline_that_draws_what_the_run_drew(glyphs_runs, vgrpo, kind, words):
    result = vgrpo("export", glyphs_runs[kind].folder, "--to", "mine", *words)
    assert (result.code, result.out.splitlines()[-1]) == (0, "wrote mine"), result.err
    assert draws_what_the_run_drew(Path("mine"), glyphs_runs[kind])
    assert not Path("mine", WEIGHTS).exists()
    assert '"_name_or_path": "model"' in Path("mine/model_index.json").read_text()
    assert not [path for path in Path("mine").rglob("*.json") if '"/' in path.read_text() and "tokenizer" not in path.parts[1]]


def doubled(export):
    """An export that writes twice what was trained."""

    def write(self, folder):
        export(self, folder)
        from safetensors import safe_open

        with safe_open(folder / WEIGHTS, "pt") as file:
            about = file.metadata()
        save_file({name: 2 * tensor for name, tensor in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS, about)

    return write


def test_adapters_that_are_not_what_was_trained_are_refused_and_removed(glyphs_runs, vgrpo, monkeypatch):
    monkeypatch.setattr(PipelinePolicy, "export", doubled(PipelinePolicy.export))
    result = vgrpo("export", glyphs_runs["lora"].folder, "--to", "mine")
    assert result.code == 2
    assert "could not be shown to do what was trained, so it was removed" in result.err
    assert "tensors of adapters differ" in result.err
    assert not list(Path().iterdir())


def test_adapters_that_a_loader_leaves_out_are_missed():
    expected = pipelines.Expected(torch.zeros(1), {"layer.A": torch.ones(2)}, {}, (), True)
    bare = SimpleNamespace(dtype=torch.float32, denoisers={"transformer": torch.nn.Linear(2, 2)})
    with pytest.raises(ValueError, match="it holds 0 tensors of adapters, 1 were trained"):
        pipelines.check(expected, bare, None, whole=False)


def test_a_pipeline_that_draws_something_else_is_refused_and_removed(glyphs_runs, vgrpo, monkeypatch):
    monkeypatch.setattr(pipelines, "merge", lambda adapted, plain: None)
    result = vgrpo("export", glyphs_runs["lora"].folder, "--to", "mine", "--full")
    assert result.code == 2
    assert "latents differ by" in result.err
    assert not list(Path().iterdir())


@pytest.fixture(scope="session")
def exported(glyphs_runs, tmp_path_factory):
    """The adapters of the embedded model, exported."""
    run, folder = glyphs_runs["lora"].folder, tmp_path_factory.mktemp("exported") / "deep" / "mine"
    (run / "before-after.png").write_bytes(b"picture")
    lines = list(export(Asked(str(run), folder)))
    assert lines[0].startswith("checked: loaded again, it draws what the run draws")
    assert lines[1:] == [f"wrote {folder}"]
    return folder


def test_the_card_says_what_the_run_says(glyphs_runs, exported):
    run = glyphs_runs["lora"].folder
    front, text = card(exported)
    assert front == {
        "library_name": "diffusers",
        "pipeline_tag": "text-to-image",
        "tags": ["text-to-image", "diffusers", "lora", "vgrpo"],
    }
    lines = {line["iteration"]: line["eval/light/mean"] for line in Folder(run).lines()}
    figures = re.search(r"\| `light` \| ([\d.]+) \| ([\d.]+) \|", text)
    assert [float(value) for value in figures.groups()] == pytest.approx([lines[0], lines[1]], abs=6e-4)
    assert "| `light` | 1 | `brightness` (vgrpo " in text
    assert "](before-after.png)" in text
    assert (exported / "before-after.png").read_bytes() == b"picture"
    recipe = re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1]
    assert recipe.strip() == (exported / "recipe.toml").read_text().strip()
    assert 'path = "prompts.txt"' in recipe
    assert str(run.parents[1]) not in text
    assert f"torch {torch.__version__.partition('+')[0]}" in text


def test_the_recipe_in_the_folder_is_that_of_the_run(glyphs_runs, exported):
    again, first = load(exported / "recipe.toml"), load(glyphs_runs["lora"].folder / "recipe.toml")
    assert again.prompts[0].plugin.path == exported / "prompts.txt"
    assert (again.backbone, again.rewards[0].plugin, again.run) == (first.backbone, first.rewards[0].plugin, first.run)


def test_a_checkpoint_before_the_end_has_its_own_figures_and_no_picture(toy_run, vgrpo):
    (toy_run.folder / "before-after.png").write_bytes(b"picture")
    assert vgrpo("export", toy_run.folder, "--to", "mine", "--checkpoint", 2).code == 0
    front, text = card(Path("mine"))
    lines = {line["iteration"]: line["eval/red/mean"] for line in Folder(toy_run.folder).lines()}
    assert f"| `red` | {lines[0]:.3f} | {lines[2]:.3f} |" in text
    assert "before-after.png" not in text
    assert not Path("mine/before-after.png").exists()
    assert "library_name" not in front


def test_a_backbone_of_another_kind_writes_the_averaged_weights_in_its_own_format(toy_run, vgrpo):
    result = vgrpo("export", toy_run.folder, "--to", "mine")
    assert (result.code, "not checked" in result.out) == (0, True)
    found, wanted = (torch.load(folder / "weights.pt") for folder in (Path("mine"), toy_run.folder / "model"))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_an_empty_folder_is_filled_and_any_other_left_alone(toy_run, vgrpo):
    Path("empty").mkdir()
    assert vgrpo("export", toy_run.folder, "--to", "empty").code == 0
    before = {path: path.read_bytes() for path in Path("empty").iterdir()}
    result = vgrpo("export", toy_run.folder, "--to", "empty")
    assert (result.code, "--to empty: the folder is not empty, and nothing is overwritten" in result.err) == (2, True)
    assert {path: path.read_bytes() for path in Path("empty").iterdir()} == before


MISTAKES = [
    (["--to", "/proc/x"], "/proc/x: can't be written there: No such file or directory; name another place with --to"),
    (["--checkpoint", "base"], "there is nothing to export"),
    (["--full"], 'backbone "toy" is no diffusers pipeline'),
    (["--private"], "add --push-to-hub owner/name"),
    (["--push-to-hub", "a/b/c"], '--push-to-hub "a/b/c": Repo id must'),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_mistakes_are_explained_and_nothing_is_written(toy_run, vgrpo, words, message):
    result = vgrpo("export", toy_run.folder, "--to", "mine", *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert not list(Path().iterdir())
