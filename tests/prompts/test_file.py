"""The prompt source `file`."""

import csv
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from vgrpo_core import PluginError, Prompt
from vgrpo_prompts.file import File

ROWS = [
    {"prompt": 'a sign that says "sale"', "text": "sale", "tags": ["ocr"]},
    {"tag": "counting", "include": [{"class": "dog", "count": 2}], "exclude": [{"class": "dog", "count": 3}], "prompt": "two dogs"},
    {"prompt": "a cat"},
]
PROMPTS = [Prompt(row["prompt"], {key: value for key, value in row.items() if key != "prompt"}) for row in ROWS]


@pytest.fixture
def write(tmp_path):
    """Return `write(name, content)`: the path of a new file, as text."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def refused(path, **options):
    with pytest.raises(PluginError) as error:
        File(path=path, **options).load()
    return str(error.value)


def lines(rows):
    return "\n".join(map(json.dumps, rows))


def test_a_text_file_holds_a_prompt_a_line_without_blank_ones(write):
    path = write("p.txt", "a cat\n\n  # a hash is no comment  \n\t\na dog")
    assert File(path=path).load() == [Prompt("a cat"), Prompt("# a hash is no comment"), Prompt("a dog")]


def test_json_lines_hold_a_table_a_line_and_all_but_the_prompt_is_metadata(write):
    assert File(path=write("p.jsonl", f"\n{lines(ROWS)}\n\n")).load() == PROMPTS


def test_a_json_file_holds_a_list_of_tables_or_texts(write):
    assert File(path=write("p.json", json.dumps([*ROWS, "a fox"], indent=2))).load() == [*PROMPTS, Prompt("a fox")]


def test_a_csv_file_is_read_as_the_library_that_wrote_it_meant_it(tmp_path):
    rows = [
        {"prompt": 'a sign, red, that says "hi"', "text": "hi", "n": "1"},
        {"prompt": "two\nlines", "text": "", "n": "2"},
        {"prompt": "Löwe", "text": "a,b", "n": ""},
    ]
    with (tmp_path / "p.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["n", "prompt", "text"])
        table.writeheader()
        table.writerows(rows)
    assert File(path=str(tmp_path / "p.csv")).load() == [
        Prompt(rows[0]["prompt"], {"n": "1", "text": "hi"}),
        Prompt(rows[1]["prompt"], {"n": "2"}),
        Prompt(rows[2]["prompt"], {"text": "a,b"}),
    ]


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip), min_size=1))
def test_whatever_stands_in_a_prompt_comes_back_from_json_lines(tmp_path_factory, prompts):
    path = tmp_path_factory.mktemp("any") / "p.jsonl"
    path.write_bytes("\r\n".join(json.dumps({"prompt": text}, ensure_ascii=False) for text in prompts).encode())
    assert [prompt.text for prompt in File(path=str(path)).load()] == prompts


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.txt", "a café\r\na dog\r\n"),
        ("p.txt", "a café\ra dog"),
        ("p.jsonl", '{"prompt": "a café"}\r\n{"prompt": "a dog"}\r\n'),
        ("p.json", '["a café",\r\n"a dog"]'),
        ("p.csv", "prompt\r\na café\r\na dog\r\n"),
        ("P.TXT", "a café\na dog"),
    ],
)
def test_byte_order_marks_and_line_ends_of_all_systems_are_no_part_of_a_prompt(write, name, content):
    for text in (content, f"\ufeff{content}"):
        assert [prompt.text for prompt in File(path=write(name, text)).load()] == ["a café", "a dog"]


def test_letters_are_kept_as_they_are_composed_or_not(write):
    assert [prompt.text for prompt in File(path=write("p.txt", "café\ncafe\u0301")).load()] == ["café", "cafe\u0301"]


def test_only_line_feeds_and_carriage_returns_end_a_line(write):
    assert File(path=write("p.txt", "a\u2028b\x0bc\u0085d")).load() == [Prompt("a\u2028b\x0bc\u0085d")]


def test_equal_prompts_are_kept(write):
    assert len(File(path=write("p.txt", "a cat\na cat\na cat")).load()) == 3


def test_another_column_can_hold_the_text(write):
    path = write("p.jsonl", '{"caption": "a cat", "prompt": "unused"}')
    assert File(path=path, column="caption").load() == [Prompt("a cat", {"prompt": "unused"})]


def test_skip_and_limit_cut_a_file_in_parts_that_share_nothing(write):
    path = write("p.txt", "\n".join(map(str, range(10))))
    head, tail = File(path=path, limit=7), File(path=path, skip=7)
    assert [prompt.text for prompt in head.load()] == [str(n) for n in range(7)]
    assert [prompt.text for prompt in tail.load()] == ["7", "8", "9"]
    assert [prompt.text for prompt in File(path=path, skip=2, limit=3).load()] == ["2", "3", "4"]
    assert len(File(path=path, limit=99).load()) == 10


def test_shuffling_is_a_fixed_order_made_before_the_cut(write):
    path = write("p.txt", "\n".join(map(str, range(100))))
    whole = File(path=path, shuffle=1).load()
    assert sorted(int(prompt.text) for prompt in whole) == list(range(100))
    assert whole == File(path=path, shuffle=1).load() != File(path=path, shuffle=2).load()
    assert whole != File(path=path).load()
    parts = File(path=path, shuffle=1, limit=60).load() + File(path=path, shuffle=1, skip=60).load()
    assert parts == whole


@pytest.mark.parametrize(
    ("name", "content", "mistake"),
    [
        ("p.jsonl", '{"prompt": "a"}\n\n{"prompt": "b"', ":3: no JSON: Expecting ',' delimiter at column 15"),
        ("p.jsonl", '{"promt": "a"}', ':1: no "prompt"; did you mean "promt"?'),
        ("p.jsonl", '{"x": "a", "y": 1}', ':1: no "prompt"; there is x, y'),
        ("p.jsonl", '{"prompt": 3}', ':1: "prompt" is of type int, not a text'),
        ("p.jsonl", '{"prompt": null}', ':1: "prompt" is empty'),
        ("p.jsonl", '{"prompt": " \\n"}', ':1: "prompt" is empty'),
        ("p.jsonl", '["a"]', ":1: it is of type list, neither a table nor a text"),
        ("p.json", '["a", ""]', ', item 2: "prompt" is empty'),
        ("p.json", '["a",\n]', ":2: no JSON: "),
        ("p.json", '{"prompt": "a"}', ", item 1: the file is no list; a file with a table a line ends in .jsonl"),
        ("p.csv", "promt,text\na,b\nc,d", ':1: no "prompt"; did you mean "promt"?'),
        ("p.csv", "", ':1: no "prompt"; there is nothing'),
        ("p.csv", "prompt,text\na,b\n\n,d", ':4: "prompt" is empty'),
        ("p.csv", 'prompt,text\n"a\nb",c\nd', ":4: it has 1 cells, the header 2"),
        ("p.csv", "prompt,a,a\nx,1,2", ":1: two columns have the same name"),
        ("p.csv", 'prompt\n"a"b', ":2: no CSV: "),
    ],
)
def test_a_mistake_is_named_with_file_and_line(write, name, content, mistake):
    path = write(name, content)
    assert refused(path).startswith(f'prompts "file": 1 mistake\n  {path}{mistake}')


def test_all_mistakes_are_named_at_once_ten_of_them_and_how_many_more(write):
    path = write("p.jsonl", lines([{"prompt": ""}] * 4 + [{"prompt": "fine"}] + [{}] * 9))
    first, *named, last = refused(path).split("\n  ")
    assert first == 'prompts "file": 13 mistakes'
    assert named == [f'{path}:{n}: "prompt" is empty' for n in range(1, 5)] + [
        f'{path}:{n}: no "prompt"; there is nothing' for n in range(6, 12)
    ]
    assert last == "and 3 more"


@pytest.mark.parametrize(("name", "content"), [("p.txt", "\n \n"), ("p.jsonl", ""), ("p.json", "[]"), ("p.csv", "prompt,text\n")])
def test_a_file_without_a_prompt_is_refused(write, name, content):
    assert refused(write(name, content)) == 'prompts "file": there is no prompt in it'


def test_more_skipped_than_there_are_is_an_error_that_says_how_many_there_are(write):
    path = write("p.txt", "a\nb")
    assert refused(path, skip=2) == f'prompts "file": skip is 2, but {path} has 2 prompts\n  lower skip'


def test_a_file_that_is_missing_or_a_folder_is_named_by_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = f'prompts "file": no.txt can not be read: No such file or directory\n  looked for at {tmp_path / "no.txt"}'
    assert refused("no.txt") == expected
    (tmp_path / "folder.txt").mkdir()
    assert "folder.txt can not be read: Is a directory" in refused("folder.txt")


def test_another_encoding_is_refused_with_the_byte_that_shows_it(write):
    assert refused(write("p.txt", "a cat\ncafé".encode("latin-1"))).endswith("byte 9: unexpected end of data")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Field required"),
        ({"path": "p.josn"}, 'the ending ".josn" is unknown; did you mean ".json"?; known: .txt, .jsonl, .json, .csv'),
        ({"path": "p"}, 'the ending "" is unknown; known'),
        ({"path": "p.txt", "limit": 0}, "greater than or equal to 1"),
        ({"path": "p.txt", "skip": -1}, "greater than or equal to 0"),
    ],
)
def test_a_mistaken_option_is_refused_with_the_reason(options, message):
    with pytest.raises(ValidationError) as error:
        File(**options)
    assert message in str(error.value)
