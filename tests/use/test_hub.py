"""Uploading: what the hub is asked for, and that a failure leaves a complete folder and says so."""

from __future__ import annotations

import functools
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import huggingface_hub
import pytest

HfApi = huggingface_hub.HfApi


class Fake:
    """A client that remembers what it was asked, and what the folder held then."""

    asked: tuple = ()

    def __init__(self, **about):
        assert about == {"library_name": "vgrpo"}

    def create_repo(self, name, *, private, exist_ok):
        Fake.asked = (name, private, exist_ok)
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{name}")

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        Fake.asked += (repo_id, sorted(path.name for path in Path(folder_path).iterdir()))


@pytest.fixture
def token(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_x")


@pytest.fixture
def refusing(token, monkeypatch):
    """The real client before a server that refuses everybody; returns the requests that it has got."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, json.loads(body), self.headers["Authorization"]))
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *about):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    use(monkeypatch, f"http://127.0.0.1:{server.server_port}")
    yield asked
    server.shutdown()
    server.server_close()


def use(monkeypatch, endpoint):
    monkeypatch.setattr(huggingface_hub, "HfApi", functools.partial(HfApi, endpoint=endpoint, token="hf_x"))


@pytest.mark.parametrize(("words", "private"), [([], None), (["--private"], True)])
def test_the_whole_folder_goes_to_the_repository(toy_run, vgrpo, token, monkeypatch, words, private):
    monkeypatch.setattr(huggingface_hub, "HfApi", Fake)
    result = vgrpo("export", toy_run.folder, "--to", "mine", "--push-to-hub", "me/mine", *words)
    assert (result.code, result.out.splitlines()[-1]) == (0, "uploaded to https://huggingface.co/me/mine"), result.err
    assert Fake.asked[:4] == ("me/mine", private, True, "me/mine")
    assert {"README.md", "recipe.toml", "weights.pt"} <= set(Fake.asked[4])


def complete(result, why):
    """Whether a failed upload says why, what is there and how to go on."""
    assert result.code == 2
    assert why in result.err
    assert "nothing was uploaded\n  mine is complete." in result.err
    assert result.err.endswith("hf upload me/mine mine\n")
    return Path("mine/README.md").is_file()


def test_without_a_token_the_folder_is_complete(toy_run, vgrpo, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert complete(vgrpo("export", toy_run.folder, "--to", "mine", "--push-to-hub", "me/mine"), "--push-to-hub me/mine: no token;")


def test_where_the_hub_refuses_the_folder_is_complete(toy_run, vgrpo, refusing):
    assert complete(vgrpo("export", toy_run.folder, "--to", "mine", "--push-to-hub", "me/mine", "--private"), "401")
    ((path, body, authorization),) = refusing
    assert (path, body["name"], body["organization"], authorization) == ("/api/repos/create", "mine", "me", "Bearer hf_x")
    assert body.get("private") is True or body.get("visibility") == "private"


def test_without_a_network_the_folder_is_complete(toy_run, vgrpo, token, monkeypatch):
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        closed = server.server_port
    use(monkeypatch, f"http://127.0.0.1:{closed}")
    assert complete(vgrpo("export", toy_run.folder, "--to", "mine", "--push-to-hub", "me/mine"), "ConnectError")
