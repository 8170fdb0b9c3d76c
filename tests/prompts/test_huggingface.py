"""The prompt source `huggingface`, on data sets that the library itself wrote."""

import datetime
import json
import math
import socket
import subprocess
import sys

import pytest
from pydantic import ValidationError

from vgrpo_core import Asset, PluginError, Prompt
from vgrpo_prompts.file import File
from vgrpo_prompts.huggingface import HuggingFace

datasets = pytest.importorskip("datasets")

ROWS = [{"prompt": f"prompt {n}", "text": f"word{n}", "n": n, "tags": ["ocr", str(n)]} for n in range(20)]
GENEVAL = [
    {"tag": "single_object", "include": [{"class": "cat", "count": 1}], "prompt": "a photo of a cat"},
    {"tag": "colors", "include": [{"class": "dog", "count": 1, "color": "red"}], "prompt": "a photo of a red dog"},
    {
        "tag": "position",
        "include": [{"class": "tv", "count": 1}, {"class": "cow", "count": 1, "position": ["left of", 0]}],
        "prompt": "a photo of a cow left of a tv",
    },
    {
        "tag": "counting",
        "include": [{"class": "dog", "count": 2}],
        "exclude": [{"class": "dog", "count": 3}],
        "prompt": "a photo of two dogs",
    },
]


@pytest.fixture(autouse=True)
def _own_cache_and_no_network(tmp_path_factory, monkeypatch):
    import huggingface_hub.constants

    def connect(*arguments):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.fixture(params=["parquet", "json"])
def folder(request, tmp_path):
    """Save a data set with two splits, by the library."""
    path = tmp_path / "data"
    path.mkdir()
    for split, rows in {"train": ROWS, "test": ROWS[:3]}.items():
        table = datasets.Dataset.from_list(rows)
        _ = table.to_parquet(path / f"{split}.parquet") if request.param == "parquet" else table.to_json(path / f"{split}.jsonl")
    return path


def prompts(rows):
    return [Prompt(row["prompt"], {key: value for key, value in row.items() if key != "prompt"}) for row in rows]


def refused(**options):
    with pytest.raises(PluginError) as error:
        HuggingFace(**options).load()
    return str(error.value)


@pytest.mark.parametrize("split", ["train", "test", "train[:90%]", "train[10:]", "train[:2]+test"])
def test_the_prompts_are_the_rows_that_the_library_reads(folder, split):
    expected = prompts(datasets.load_dataset(str(folder), split=split))
    assert HuggingFace(dataset=str(folder), split=split).load() == expected
    assert expected


def test_parts_of_a_split_share_nothing_and_make_the_whole(folder):
    parts = [HuggingFace(dataset=str(folder), split=f"train[{part}]").load() for part in (":75%", "75%:")]
    assert [len(part) for part in parts] == [15, 5]
    assert parts[0] + parts[1] == prompts(ROWS)


def test_a_stream_yields_the_same_rows_and_the_limit_ends_it(folder):
    assert HuggingFace(dataset=str(folder), streaming=True).load() == prompts(ROWS)
    assert HuggingFace(dataset=str(folder), streaming=True, limit=4).load() == prompts(ROWS[:4])
    assert HuggingFace(dataset=str(folder), limit=4).load() == prompts(ROWS[:4])


def test_files_are_read_by_their_format(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": name}))
    pattern = HuggingFace(dataset="json", data_files=str(tmp_path / "*.jsonl"))
    listed = HuggingFace(dataset="json", data_files=(str(tmp_path / "b.jsonl"),))
    assert pattern.load() == [Prompt("a"), Prompt("b")]
    assert listed.load() == [Prompt("b")]


@pytest.mark.parametrize("streaming", [False, True])
def test_rows_of_geneval_come_out_as_from_the_file_itself(tmp_path, streaming):
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, GENEVAL)))
    found = HuggingFace(dataset=str(tmp_path), streaming=streaming).load()
    assert found == File(path=str(path)).load() == prompts(GENEVAL)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_columns_named_are_kept_and_another_can_hold_the_text(folder, streaming):
    source = HuggingFace(dataset=str(folder), column="text", metadata=("n",), streaming=streaming, limit=1)
    assert source.load() == [Prompt("word0", {"n": 0})]


def test_no_metadata_can_be_asked_for(folder):
    assert HuggingFace(dataset=str(folder), metadata=(), limit=1).load() == [Prompt("prompt 0")]


def test_a_streamed_table_of_texts_has_its_columns_too(tmp_path):
    (tmp_path / "train.csv").write_text("prompt,text,n\na cat,x,1\na dog,,2\n")
    stream = {"dataset": str(tmp_path), "streaming": True}
    assert HuggingFace(**stream).load() == [Prompt("a cat", {"text": "x", "n": 1}), Prompt("a dog", {"n": 2})]
    assert HuggingFace(**stream, metadata=("n",)).load() == [Prompt("a cat", {"n": 1}), Prompt("a dog", {"n": 2})]
    assert 'no "txt"; did you mean "text"?' in refused(**stream, metadata=("txt",))


@pytest.mark.parametrize("streaming", [False, True])
def test_what_json_can_not_hold_is_left_out_and_not_decoded(tmp_path, monkeypatch, streaming):
    from PIL import Image

    features = datasets.Features(
        {
            "prompt": datasets.Value("string"),
            "image": datasets.Image(),
            "when": datasets.Value("timestamp[s]"),
            "kind": datasets.ClassLabel(names=["a", "b"]),
            "boxes": datasets.List({"x": datasets.Value("float32"), "image": datasets.Image()}),
            "share": datasets.Value("float64"),
        }
    )
    picture = Image.new("RGB", (4, 4))
    row = {"prompt": "a", "image": picture, "when": datetime.datetime(2024, 1, 1), "kind": "b", "boxes": [], "share": 0.5}
    datasets.Dataset.from_list([row], features=features).to_parquet(tmp_path / "train.parquet")

    def decode(*arguments, **more):
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(datasets.Image, "decode_example", decode)
    source = {"dataset": str(tmp_path), "streaming": streaming}
    assert HuggingFace(**source).load() == [Prompt("a", {"kind": 1, "share": 0.5})]
    assert "JSON can not hold the column image: Image(" in refused(**source, metadata=("image",))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "tests"}, 'no "tests"; did you mean "test"?'),
        ({"split": "x"}, 'no "x"; there is train, test'),
        ({"column": "promt"}, 'no "promt"; did you mean "prompt"?'),
        ({"column": "n"}, '20 mistakes\n  row 1: "n" is of type int, not a text'),
        ({"metadata": ("txt",)}, 'no "txt"; did you mean "text"?'),
        ({"config": "large"}, "BuilderConfig 'large' not found. Available: ['default']"),
    ],
)
def test_what_the_data_set_does_not_have_is_named_with_the_nearest(folder, options, message, streaming):
    found = refused(dataset=str(folder), streaming=streaming, **options)
    assert found.startswith(f'prompts "huggingface": {folder}, {options.get("split", "train")}')
    assert message in found


def test_a_part_of_an_unknown_split_is_named_too(folder):
    assert 'no "trian"; did you mean "train"?' in refused(dataset=str(folder), split="trian[:50%]")
    assert "Unrecognized instruction format: train[:x]" in refused(dataset=str(folder), split="train[:x]")


def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path):
    assert refused(dataset=f"{tmp_path}/none").endswith(f"can not be read\n  no folder {tmp_path}/none")


def test_a_damaged_file_is_refused_with_the_parser_s_reason(tmp_path):
    (tmp_path / "train.csv").write_text("prompt,text\na,b\nc,d,e,f\n")
    for streaming in (False, True):
        assert "Expected 2 fields in line 3, saw 4" in refused(dataset=str(tmp_path), streaming=streaming)


def test_r152_offline_a_data_set_of_the_hub_is_refused_without_a_connection():
    found = refused(dataset="someone/prompts")
    assert found.startswith('prompts "huggingface": someone/prompts, train can not be reached\n')
    assert found.endswith("without a network, name a local folder; what was loaded here before is found again")


def test_a_data_set_of_the_hub_is_an_asset_and_a_folder_is_none(folder):
    (asset,) = HuggingFace(dataset="someone/prompts").assets()
    assert (asset.name, asset.licence) == ("someone/prompts", "see its page")
    assert isinstance(asset, Asset)
    assert math.isnan(asset.size)
    assert HuggingFace(dataset=str(folder)).assets() == ()
    assert HuggingFace(dataset="json", data_files="x.jsonl").assets() == ()


def test_choosing_the_options_does_not_import_the_library():
    code = "import sys, vgrpo_prompts.huggingface as h; h.HuggingFace(dataset='a/b').assets(); print('datasets' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Field required"),
        ({"dataset": ""}, "at least 1 character"),
        ({"dataset": "a/b", "streaming": True, "split": "train[:5]"}, "streaming reads whole splits"),
        ({"dataset": "a/b", "limit": 0}, "greater than or equal to 1"),
    ],
)
def test_a_mistaken_option_is_refused_with_the_reason(options, message):
    with pytest.raises(ValidationError) as error:
        HuggingFace(**options)
    assert message in str(error.value)
