from __future__ import annotations

import datetime
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vgrpo_cli
from vgrpo_core import RecipeError, VgrpoError
from vgrpo_core.offers import Offer
from vgrpo_recipe import load


@pytest.fixture
def read(tmp_path, registry):
    """Load a text as a recipe."""

    def from_text(text, *overrides):
        path = tmp_path / "words.toml"
        path.write_text(text, encoding="utf-8")
        return load(path, overrides, registry)

    return from_text


@pytest.fixture
def mistakes(read, tmp_path):
    """Return what is wrong with a text, without the folder's name."""

    def of_text(text, *overrides):
        with pytest.raises(RecipeError) as caught:
            read(text, *overrides)
        return [mistake.replace(f"{tmp_path}/", "") for mistake in caught.value.mistakes]

    return of_text


def line_of(text, piece):
    return text[: text.index(piece)].count("\n") + 1


DOCS = Path(__file__).parents[2] / "docs"


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


# What a recipe gives


def test_a_recipe_gives_options_and_plugin_instances(read, text):
    recipe = read(text)
    assert (recipe.run.name, recipe.run.seed, recipe.run.iterations, recipe.run.device) == ("words", 0, 20, "auto")
    assert (recipe.backbone.model, recipe.backbone.lora.rank, recipe.backbone.lora.alpha) == ("somewhere", 8, 1.0)
    assert (recipe.sampler.name, recipe.sampler.steps, recipe.objective.pairs) == ("straight", 10, 4)
    assert (recipe.optimizer.betas, recipe.optimizer.decay, recipe.optimizer.max_grad_norm) == ((0.9, 0.95), "cosine", 1.0)
    assert (recipe.combine.use, recipe.combine.scale) == ("normalize_then_sum", "group")
    assert (recipe.checkpoint.every, recipe.checkpoint.keep) == (10, 2)


def test_rewards_have_weights_and_labels_and_monitors_have_no_weight(read, text):
    recipe = read(text)
    assert [(r.label, r.weight, r.scale, r.offset, r.offer.name) for r in recipe.rewards] == [
        ("blank", 2.0, 1.0, 0.0, "blank"),
        ("light", 1.0, 1.0, 0.0, "bright"),
    ]
    assert [r.plugin.name for r in recipe.rewards] == ["blank", "bright"]
    assert [(r.label, r.weight) for r in recipe.eval.rewards] == [("bright", 0.0)]
    assert [offer.name for offer in recipe.offers] == ["painter", "straight", "numbers", "vgrpo", "blank", "bright"]


def test_evaluation_takes_prompts_and_sampler_of_training_unless_told_otherwise(read, text):
    recipe = read(text)
    assert (recipe.eval.prompts[0].plugin.count, recipe.prompts[0].plugin.count) == (7, 40)
    assert recipe.eval.sampler is recipe.sampler
    recipe = read(text.replace("[eval.prompts]", "[eval.sampler]").replace('"numbers"\ncount = 7', '"twice"\nsteps = 5'))
    assert recipe.eval.prompts is recipe.prompts
    assert recipe.eval.sampler.evaluations == 10


def test_the_objective_is_v_grpo_when_none_is_named(read, text):
    assert read(text.replace("[objective]\nsteps = 2\npairs = 4\n", "")).objective.name == "vgrpo"


def test_a_reward_from_a_file_beside_the_recipe_is_used_and_kept_by_its_whole_path(read, text, tmp_path):
    (tmp_path / "shiny.py").write_text(
        "from vgrpo_core import Reward\nclass Shiny(Reward):\n    name = 'shiny'\n    def load(self, device): ...\n"
    )
    recipe = read(text.replace('use = "blank"', 'use = "./shiny.py:Shiny"'))
    assert recipe.rewards[0].label == "shiny"
    assert recipe.table["reward"][0]["use"] == f"{tmp_path}/shiny.py:Shiny"


# K20: typos, types and dropped values


def test_r129_an_unknown_key_names_file_line_and_the_nearest_key(mistakes, text):
    for piece, typo, near in [
        ("iterations", "iteratoins", "iterations"),
        ("weight = 2", "wieght = 2", "weight"),
        ("target", "tarjet", "target"),
        ("steps = 10", "step = 10", "steps"),
        ("count = 7", "cuont = 7", "count"),
        ("decay", "deccay", "decay"),
        ("rank = 8", "rank = 8, alhpa = 1", "alpha"),
    ]:
        wrong = text.replace(piece, typo, 1)
        unknown = [mistake for mistake in mistakes(wrong) if "unknown key" in mistake]
        assert len(unknown) == 1
        assert unknown[0].startswith(f"words.toml:{line_of(wrong, typo)}: [")
        assert unknown[0].endswith(f'; did you mean "{near}"?')


def test_an_unknown_key_near_nothing_gets_the_list_of_keys(mistakes, text):
    (mistake,) = mistakes(text.replace("lr = 3e-4", "lr = 3e-4\nxyzzy = 1"))
    known = "lr, betas, weight_decay, warmup, decay, max_grad_norm, bits, ema"
    assert mistake.endswith(f'[optimizer] unknown key "xyzzy"; known: {known}')


def test_r130_a_key_in_the_wrong_table_is_sent_home(mistakes, text):
    assert any("it belongs to [optimizer]" in mistake for mistake in mistakes(text.replace("group = 6", "group = 6\nlr = 1e-4")))
    assert any("it belongs to [backbone]" in mistake for mistake in mistakes(text.replace("iterations", "dtype = 'x'\niterations")))
    assert any("it belongs to [[reward]]" in mistake for mistake in mistakes(text.replace("count = 7", "weight = 7")))


def test_r130_a_key_above_all_tables_and_an_unknown_table_are_sent_home_too(mistakes, text):
    assert mistakes("seed = 1\n" + text) == ['words.toml:1: unknown table or key "seed"; it belongs to [run] or [eval]']
    end = text.count("\n") + 1
    assert mistakes(text + "[lora]\nrank = 1") == [f'words.toml:{end}: unknown table or key "lora"; it belongs to [backbone]']
    assert mistakes(text + "[chekpoint]") == [f'words.toml:{end}: unknown table or key "chekpoint"; did you mean "checkpoint"?']


def test_r131_a_wrong_boolean_key_of_a_plugin_is_refused(mistakes, text):
    (mistake,) = mistakes(text.replace("target = 0.5", "strickt = false"))
    assert '[[reward]] 2 unknown key "strickt"; did you mean "strict"?' in mistake


def test_r132_a_choice_lists_what_may_be_chosen(mistakes, text):
    (mistake,) = mistakes(text.replace('decay = "cosine"', 'decay = "cosin"'))
    assert mistake.endswith("decay is \"cosin\": input should be 'none', 'cosine' or 'linear'; did you mean \"cosine\"?")


def test_r133_a_quoted_number_is_refused_with_key_and_line(mistakes, text):
    (mistake,) = mistakes(text.replace("3e-4", '"1e-4"'))
    line = line_of(text, "3e-4")
    assert mistake == f'words.toml:{line}: [optimizer] lr is "1e-4": input should be a valid number; write it without quotes'


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("iterations = 20", "iterations = 20.5", "iterations is 20.5: input should be a valid integer"),
        ("iterations = 20", "iterations = true", "iterations is true: input should be a valid integer"),
        ("iterations = 20", "iterations = 0", "greater than or equal to 1"),
        ("lr = 3e-4", "lr = false", "lr is false: input should be a valid number"),
        ("lr = 3e-4", "lr = nan", "finite"),
        ("lr = 3e-4", "lr = 0", "greater than 0"),
        ("lr = 3e-4", "lr = 1\nbetas = [0.9, 1.0]", "betas.1 is 1.0: input should be less than 1"),
        ("weight = 2", "weight = nan", "weight is NaN: input should be a finite number"),
        ("weight = 2", "weight = -inf", "weight is -Infinity: input should be a finite number"),
        ("weight = 2", "offset = inf", "finite"),
        ("target = 0.5", "strict = 1", "strict is 1: input should be a valid boolean"),
        ('label = "light"', 'label = "a/b"', "should match pattern"),
        ('use = "painter"', "use = 3", "use is 3: input should be a valid string"),
        ("iterations = 20", "iterations = 20\nname = '../x'", "should match pattern"),
        ("rank = 8", "rank = '8'", 'lora.rank is "8"'),
        ("lora = { rank = 8 }", "lora = 3", "lora is 3"),
        ("lora = { rank = 8 }", "lora = {}", '"lora.rank" is missing'),
    ],
)
def test_values_are_as_strict_as_json(mistakes, text, right, wrong, said):
    (mistake,) = mistakes(text.replace(right, wrong))
    assert said in mistake


def test_a_date_is_no_text(mistakes, text):
    (mistake,) = mistakes(text.replace('use = "painter"', "use = 2026-01-02"))
    assert mistake.endswith("[backbone] the options could not be read: 2026-01-02 is a date or time; write it in quotes")


def test_a_whole_number_is_fine_for_a_number(read, text):
    recipe = read(text.replace("lr = 3e-4", "lr = 1").replace("target = 0.5", "target = 1"))
    assert (recipe.optimizer.lr, recipe.rewards[1].plugin.target) == (1.0, 1.0)


def test_every_mistake_is_reported_at_once(mistakes, text):
    wrong = text.replace("iterations", "iteratoins").replace("straight", "strait")
    wrong = wrong.replace("3e-4", "'x'").replace("target", "tarjet")
    found = mistakes(wrong, "batch.mirco=3")
    assert len(found) == 6
    for piece in ("iteratoins", '"iterations" is missing', '"strait"', "lr is", "tarjet", "--set batch.mirco=3"):
        assert sum(piece in mistake for mistake in found) == 1


def test_missing_tables_are_named_with_what_could_stand_in_them(mistakes):
    found = mistakes("")
    assert 'words.toml: [sampler] "use" is missing (installed: straight, twice)' in found
    assert 'words.toml: [run] "iterations" is missing (how often to draw images and learn from them)' in found
    assert "words.toml: there is no [[reward]]; add one to train on" in found
    tables = {"[run]", "[backbone]", "[sampler]", "[prompts]", "[batch]", "[optimizer]"}
    assert {mistake.split()[1] for mistake in found} == tables | {"there"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("reward = 3", "[reward] is not a table; write [[reward]], in double brackets"),
        ("[reward.ocr]\nenable = false", "[reward] is not a table; write [[reward]], in double brackets"),
        ("reward = [3]", "[reward] is not a table"),
        ("batch = 3", "[batch] is not a table; write [batch]"),
        ("eval = 3", "[eval] is not a table; write [eval]"),
        ("eval.prompts = 3", "[eval.prompts] is not a table; write [eval.prompts]"),
        ("reward = []", "there is no [[reward]]"),
    ],
)
def test_something_else_in_the_place_of_a_table_is_refused(mistakes, wrong, said):
    assert any(said in mistake for mistake in mistakes(wrong))


def test_a_validator_of_a_plugin_that_raises_is_named_and_not_fatal(mistakes, text):
    (mistake,) = mistakes(text.replace('use = "blank"', 'use = "fussy"'))
    assert mistake.endswith("[[reward]] 1 the options could not be read: KeyError: 'surprise'")


# K02: groups, and rewards


def test_r012_a_group_of_one_is_refused_with_the_reason(mistakes, text):
    (mistake,) = mistakes(text.replace("group = 6", "group = 1"))
    assert "[batch] group is 1: a group needs at least 2 samples" in mistake
    assert RecipeError(["x"]).exit_code == 2


def test_labels_are_unique_over_rewards_and_monitors(mistakes, text):
    (mistake,) = mistakes(text.replace('label = "light"\n', ""))
    assert mistake.endswith('[[eval.reward]] 1 the label "bright" is taken by [[reward]] 2; give one of them another `label`')


def test_all_weights_zero_leaves_nothing_to_train_on(mistakes, read, text):
    (mistake,) = mistakes(text.replace("weight = 2", "weight = 0").replace('label = "light"', 'label = "light"\nscale = 0.0'))
    assert "every weight is 0" in mistake
    assert read(text.replace("weight = 2", "weight = 0")).rewards[0].weight == 0


# Files


def test_a_syntax_error_has_line_and_column(mistakes, text):
    line = line_of(text, "group = 6")
    (mistake,) = mistakes(text.replace("group = 6", "group 6"))
    assert mistake == f"words.toml:{line}:7: not TOML: Expected '=' after a key in a key/value pair"


def test_a_missing_file_a_folder_and_bytes_that_are_no_text_are_explained(tmp_path, registry):
    def refusal(path):
        with pytest.raises(RecipeError) as caught:
            load(path, (), registry)
        return str(caught.value)

    (tmp_path / "words.toml").write_bytes(b"[run]\nname = '\xff'")
    assert refusal(tmp_path / "wrods.toml").endswith('wrods.toml: no such file; did you mean "words.toml"?')
    assert refusal(tmp_path).endswith(": a folder, not a recipe file")
    assert refusal(tmp_path / "words.toml").endswith("words.toml:2: byte 0xff is not UTF-8; save the file as UTF-8 text")
    assert "can't be read" in refusal("a\0b.toml")


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path, registry, text):
    path = tmp_path / "words.toml"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert load(path, (), registry).batch.group == 6


def test_nesting_without_end_is_refused(mistakes):
    (mistake,) = mistakes("x = " + "[" * 20_000)
    assert "not TOML" in mistake


def test_lines_are_found_under_every_way_of_writing_a_key(mistakes, text):
    tail = '''
[[reward]]
use = """bright"""
label = \'\'\'
  a b\'\'\'
target = [
  # [x]
  "a]",
]
[[reward]] # the next
"use" = 'bright'
 strict . x = 1
'''
    lines = (text + tail).split("\n")
    found = mistakes(text + tail)
    where = {mistake.partition(": ")[2][:18]: int(mistake.split(":")[1]) for mistake in found}
    assert where == {
        "[[reward]] 3 label": lines.index("label = '''") + 1,
        "[[reward]] 3 targe": lines.index("target = [") + 1,
        "[[reward]] 4 stric": lines.index(" strict . x = 1") + 1,
        "[[eval.reward]] 1 ": lines.index("[[eval.reward]]") + 1,
    }


# Overrides


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("run.seed=1", lambda r: r.run.seed == 1),
        ("run.name=other", lambda r: r.run.name == "other"),
        ('run.name="a = b"', lambda r: r.run.name == "a = b"),
        ("reward.0.weight=3", lambda r: r.rewards[0].weight == 3),
        ("reward.light.weight=0.25", lambda r: r.rewards[1].weight == 0.25),
        ("reward.blank.weight = 5", lambda r: r.rewards[0].weight == 5),
        ("eval.reward.bright.target=0", lambda r: r.eval.rewards[0].plugin.target == 0),
        ("backbone.lora.rank=16", lambda r: r.backbone.lora.rank == 16),
        ("sampler.size=[1, 2]", lambda r: r.sampler.size == (1, 2)),
        ("checkpoint.every=3", lambda r: r.checkpoint.every == 3),
        ('reward=[{use = "blank"}]', lambda r: len(r.rewards) == 1),
    ],
)
def test_an_override_sets_one_value(read, text, override, value):
    assert not value(read(text))
    assert value(read(text, override))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.sed=1", '--set run.sed=1: [run] unknown key "sed"; did you mean "seed"?'),
        ("rum.seed=1", '--set rum.seed=1: unknown table or key "rum"; did you mean "run"?'),
        ("run.seed", '--set run.seed: write it as key=value, such as "run.seed=1"'),
        ("run.iterations.x=1", '"x" can\'t be set inside 20, which is no table'),
        ("reward.7.weight=1", 'no entry "7"; there are 0 (blank), 1 (light)'),
        ("reward.lihgt.weight=1", '; did you mean "light"?'),
        ("run.seed=one", '--set run.seed=one: [run] seed is "one": input should be a valid integer'),
        ("run.seed=1\nx = 2", 'seed is "1\\nx = 2"'),
        ("=1", 'unknown table or key ""'),
    ],
)
def test_a_wrong_override_is_shown_as_it_was_written(mistakes, text, override, said):
    assert any(said in mistake for mistake in mistakes(text, override))


# Composition


SETS = """
[[prompts]]
use = "numbers"
share = 3
tag = "first"

[[prompts]]
use = "numbers"
count = 7
"""


def test_several_sets_of_prompts_have_shares_and_tags(read, text):
    recipe = read(text.replace('[prompts]\nuse = "numbers"\n', SETS))
    assert [(each.plugin.count, each.share, each.tag) for each in recipe.prompts] == [(40, 3.0, "first"), (7, 1.0, None)]
    assert len(recipe.eval.prompts) == 1
    again = read(recipe.to_toml())
    assert again.prompts == recipe.prompts


def test_mistakes_in_one_of_several_sets_are_named_by_its_place(mistakes, text):
    (mistake,) = mistakes(text.replace('[prompts]\nuse = "numbers"\n', SETS.replace("count = 7", "cuont = 7")))
    assert mistake.endswith('[[prompts]] 2 unknown key "cuont"; did you mean "count"?')


@pytest.mark.parametrize("weight", ["[[0, 1.0], [100, 0.2]]", "[[10, -1]]"])
def test_a_weight_may_be_points_and_stays_so_when_it_is_written(read, text, weight):
    recipe = read(text.replace("weight = 2", f"weight = {weight}"))
    (entry,) = [entry for entry in recipe.rewards if isinstance(entry.weight, tuple)]
    assert [list(point) for point in entry.weight] == tomllib.loads(f"x = {weight}")["x"]
    assert read(recipe.to_toml()).rewards == recipe.rewards


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        ('"much"', "write a number, or points [[iteration, weight], ...]"),
        ("[1, 2]", "write a number, or points [[iteration, weight], ...]"),
        ("[]", "write a number, or points [[iteration, weight], ...]"),
        ("[[5, 1.0], [5, 0.2]]", "the iterations of its points have to rise"),
        ("[[0, 0], [9, 0.0]]", "every weight is 0"),
    ],
)
def test_a_wrong_weight_says_how_to_write_one(mistakes, text, weight, said):
    found = mistakes(text.replace("weight = 2", f"weight = {weight}").replace('label = "light"', 'label = "light"\nweight = 0'))
    assert said in found[-1]


def test_a_gate_names_another_reward_and_a_bound(read, mistakes, text):
    gated = text.replace("weight = 2", 'weight = 2\ngate = { reward = "light", above = 0.5 }')
    (entry,) = [entry for entry in read(gated).rewards if entry.gate]
    assert (entry.gate.reward, entry.gate.above, entry.gate.below) == ("light", 0.5, float("inf"))
    assert read(read(gated).to_toml()).rewards == read(gated).rewards
    (mistake,) = mistakes(gated.replace('reward = "light"', 'reward = "lihgt"'))
    assert mistake.endswith('gate names no other [[reward]]: "lihgt"; did you mean "light"?')


def served(*options):
    """Load the shipped recipe, whose registry is what is installed, with its first reward elsewhere."""
    words = Path(vgrpo_cli.__file__).parent / "recipes" / "words.toml"
    return load(words, ["eval.watch=false", *options])


def test_a_reward_with_a_url_is_asked_there_with_its_own_options(tmp_path):
    recipe = served("reward.ocr.url=http://127.0.0.1:8800", "reward.ocr.token_env=TOKEN", "reward.ocr.min_confidence=0.5")
    client = recipe.rewards[0].plugin
    assert (client.name, client.reward, client.url, client.token_env) == ("remote", "ocr", "http://127.0.0.1:8800", "TOKEN")
    assert client.options == served("reward.ocr.min_confidence=0.5").rewards[0].plugin.model_dump(mode="json")
    assert recipe.rewards[0].label == "ocr" and recipe.rewards[1].plugin.name == "pixel_color"
    (tmp_path / "again.toml").write_text(recipe.to_toml(), encoding="utf-8")
    assert load(tmp_path / "again.toml").rewards == recipe.rewards


def test_a_reward_of_another_environment_need_not_have_what_it_needs_here(monkeypatch):
    monkeypatch.setattr(Offer, "missing", property(lambda offer: ("rapidocr",) if offer.name == "ocr" else ()))
    with pytest.raises(RecipeError, match="needs rapidocr, which is not installed"):
        served()
    assert served("reward.ocr.python=/other/bin/python").rewards[0].plugin.python == "/other/bin/python"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["reward.ocr.url=127.0.0.1"], 'write "url" as http://host:port'),
        (["reward.ocr.url=http://a:1", "reward.ocr.python=x"], 'give either "url" or "python"'),
        (["reward.ocr.url=http://a:1", "reward.ocr.mode=wrod"], "mode is"),
    ],
)
def test_a_wrong_place_of_a_reward_is_explained(options, said):
    with pytest.raises(RecipeError) as caught:
        served(*options)
    assert said in str(caught.value)


def test_the_best_checkpoint_is_chosen_by_a_reward_of_the_recipe(read, mistakes, text):
    assert read(text, "checkpoint.best=light").checkpoint.best == "light"
    (mistake,) = mistakes(text, "checkpoint.best=lihgt")
    assert mistake == '--set checkpoint.best=lihgt: [checkpoint] best names no reward: "lihgt"; did you mean "light"?'


def test_statistics_of_pixels_are_watched_where_they_are_installed_unless_the_recipe_says_no(tmp_path):
    words = Path(vgrpo_cli.__file__).parent / "recipes" / "words.toml"
    watched = ["brightness", "dark_fraction", "edge_density", "color_entropy"]
    recipe = load(words)
    assert [entry.label for entry in recipe.eval.rewards] == watched
    (tmp_path / "again.toml").write_text(recipe.to_toml(), encoding="utf-8")
    assert load(tmp_path / "again.toml").eval.rewards == recipe.eval.rewards
    assert load(words, ["eval.watch=false"]).eval.rewards == ()


# Writing


def test_the_resolved_recipe_loads_to_the_same_recipe_from_another_folder(read, text, tmp_path, registry):
    first = read(text, "run.seed=5")
    (tmp_path / "run").mkdir()
    again = tmp_path / "run" / "recipe.toml"
    again.write_text(first.to_toml(), encoding="utf-8")
    second = load(again, (), registry)
    assert second.table == first.table
    assert (second.run, second.rewards, second.backbone, second.eval) == (first.run, first.rewards, first.backbone, first.eval)
    assert second.run.name == "words"


LINES = """
from pathlib import Path
from vgrpo_core import Prompts

class Lines(Prompts):
    name = "lines"
    path: Path | None = None

    def load(self):
        return ()
"""


def test_a_file_is_looked_for_beside_the_recipe_that_names_it_and_here_when_an_override_does(read, text, tmp_path, monkeypatch):
    (tmp_path / "lines.py").write_text(LINES, encoding="utf-8")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    named = text.replace('use = "numbers"', 'use = "./lines.py:Lines"\npath = "data/p.txt"', 1)
    assert read(named).prompts[0].plugin.path == tmp_path / "data" / "p.txt"
    assert read(named).table["prompts"]["path"] == str(tmp_path / "data" / "p.txt")
    assert read(named, "prompts.path=p.txt").prompts[0].plugin.path == tmp_path / "here" / "p.txt"
    whole = 'prompts={use="./lines.py:Lines", path="p.txt"}'
    assert read(named, whole).prompts[0].plugin.path == tmp_path / "here" / "p.txt"
    assert read(named.replace("data/p.txt", "/data/p.txt")).prompts[0].plugin.path == Path("/data/p.txt")


def test_the_resolved_recipe_holds_the_defaults(read, text):
    table = read(text).table
    assert table["optimizer"]["betas"] == [0.9, 0.95]
    assert table["backbone"]["dtype"] == "float32"
    assert table["reward"][1] == {"use": "bright", "label": "light", "weight": 1.0, "scale": 1.0, "offset": 0.0} | {
        "on": [],
        "target": 0.5,
        "strict": False,
    }


printable = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
moments = st.datetimes() | st.dates() | st.times() | st.just(datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC))
scalars = st.booleans() | st.integers() | st.floats(allow_nan=False) | printable | moments
values = st.recursive(scalars, lambda at: st.lists(at, max_size=3) | st.dictionaries(printable, at, max_size=3), max_leaves=12)
tables = st.dictionaries(printable, values, max_size=4)


# Any table gives a recipe or a message


def damage(data, table):
    """Delete, rename, replace or add one thing somewhere in a table."""
    node, parent, key = table, table, None
    while isinstance(node, dict | list) and node and (key is None or data.draw(st.booleans())):
        parent, key = node, data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        node = parent[key]
    match data.draw(st.sampled_from(["delete", "rename", "replace", "add"])):
        case _ if key is None:
            pass
        case "delete":
            del parent[key]
        case "rename" if isinstance(parent, dict):
            parent[data.draw(printable)] = parent.pop(key)
        case "add" if isinstance(node, dict):
            node[data.draw(printable | st.sampled_from(["use", "steps", "weight", "label"]))] = data.draw(values)
        case _:
            parent[key] = data.draw(values)


def check(read, text, *overrides):
    try:
        recipe = read(text, *overrides)
    except VgrpoError as error:
        assert str(error)
    else:
        assert read(recipe.to_toml()).table == recipe.table


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_recipe_loads_or_is_refused_and_nothing_else(data, read, text):
    table = tomllib.loads(text)
    for _ in range(data.draw(st.integers(1, 3))):
        damage(data, table)
    check(read, tomli_w.dumps(table))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables, text=printable, overrides=st.lists(st.from_regex(r"(run|reward|eval|x)(\.[a-z0]+){0,3}=?.*"), max_size=3))
def test_any_text_and_any_overrides_load_or_are_refused_and_nothing_else(read, table, text, overrides):
    check(read, tomli_w.dumps(table), *overrides)
    check(read, text, *overrides)


def test_loading_a_recipe_and_planning_it_do_not_import_torch(tmp_path):
    path = tmp_path / "words.toml"
    path.write_text(SHIPPED)
    code = f"""
import sys
from vgrpo_recipe.plan import Plan
from vgrpo_recipe import load
from vgrpo_recipe.registry import Registry
recipe = load({str(path)!r})
assert Plan.of(recipe).images == 24
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "diffusers", "transformers", "rapidocr"} & set(done.stdout.split())


SHIPPED = """
run = { iterations = 1 }
backbone = { use = "diffusers", model = "builtin:glyphs" }
sampler = { use = "euler" }
prompts = { use = "words" }
batch = { prompts = 4, group = 6 }
optimizer = { lr = 1e-4 }
reward = [{ use = "jpeg_size" }]
"""


# The docs


def test_the_mistakes_in_the_docs_are_what_is_said(mistakes, text):
    (shown, *_) = blocks("recipe.md", "text")
    found = mistakes(text.replace("group = 6", "group = 1\nlr = 1").replace("decay =", "wieght_decay = 0\ndecay ="))
    assert [line.partition(": ")[2] for line in shown.splitlines()] == [mistake.partition(": ")[2] for mistake in found]
