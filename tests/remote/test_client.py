"""The reward `remote` against good servers and bad ones."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import Event

import pytest
import torch
from pydantic import ValidationError

from vgrpo_core import PluginError, Prompt, Reward, RunError, Samples, Scores
from vgrpo_core.offers import Offer
from vgrpo_core.scoring import Judge
from vgrpo_core.trainer import Trainer
from vgrpo_recipe import load
from vgrpo_recipe.registry import Registry
from vgrpo_remote import Remote
from vgrpo_remote.client import Outage, pause
from vgrpo_remote.wire import Limits

CPU = torch.device("cpu")


class Number(Reward):
    """Red + 256 green + 65536 blue of the first pixel; of a prompt "?", missing."""

    name = "number"
    times: float = 1.0
    wrong: str | None = None

    def load(self, device):
        self.__dict__["sizes"] = []
        return self._score

    def _score(self, samples):
        self.sizes.append(len(samples))
        values = torch.from_numpy(samples.pixels()[:, 0, 0]).float() @ torch.tensor([1.0, 256.0, 65536.0]) * self.times
        values[[prompt.text == "?" for prompt in samples.prompts]] = torch.nan
        return Scores(values, [{"prompt": prompt.text} for prompt in samples.prompts])


class Mean(Reward):
    """Mean of all pixels: sensitive to the last bit of each."""

    name = "mean"

    def load(self, device):
        return lambda samples: samples.images.mean(dim=(1, 2, 3))


def right(request):
    """Answer with the numbers of the prompts."""
    return 200, {"id": request["id"], "values": [float(row["metadata"]["number"]) for row in request["samples"]]}


def late(request):
    """Answer to another request."""
    return 200, {"id": "another", "values": [0.0] * len(request["samples"])}


# R031 to R033: the same plugin here and there


def test_r033_scores_are_those_of_the_same_reward_here_to_the_last_bit(serve, remote):
    images = torch.randint(0, 256, (7, 3, 33, 17), generator=torch.Generator().manual_seed(5)).float() / 255
    samples = Samples(tuple(Prompt(str(row)) for row in range(7)), images)
    here = Mean().load(CPU)(samples)
    assert here.unique().numel() == 7
    assert torch.equal(remote(serve(Mean()), reward="mean")(samples).values, here.double())


def test_other_images_are_rounded_to_8_bits_first(serve, remote):
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(6))
    samples = Samples(tuple(Prompt(str(row)) for row in range(4)), images)
    rounded = Samples(samples.prompts, images.mul(255).round() / 255)
    there = remote(serve(Mean()), reward="mean")(samples).values
    assert torch.equal(there, Mean().load(CPU)(rounded).double())
    assert not torch.equal(there, Mean().load(CPU)(samples).double())


def test_missing_stays_missing_and_evidence_arrives(serve, remote, painted):
    samples = painted([3, 70000, 5])
    samples = Samples((samples.prompts[0], Prompt("?"), samples.prompts[2]), samples.images)
    found = remote(serve(Number()), batch=2)(samples)
    assert found.values.tolist()[::2] == [3, 5] and math.isnan(found.values[1])
    assert found.evidence == [{"prompt": "number 3"}, {"prompt": "?"}, {"prompt": "number 5"}]


def test_r031_any_batch_is_split_as_the_server_wants_and_joined_in_order(serve, remote, painted):
    plugin = Number()
    score = remote(serve(plugin, limits=Limits(images=4)))
    assert score(painted([9, 8, 7, 6, 5])).values.tolist() == [9, 8, 7, 6, 5]
    assert plugin.sizes == [4, 1]


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("count", [0, 1, 23])
def test_batches_of_any_size_come_back_in_order(serve, remote, painted, count, parallel):
    numbers = torch.randint(1 << 24, (count,), generator=torch.Generator().manual_seed(7))
    score = remote(serve(Number()), batch=3, parallel=parallel)
    found = score(painted(numbers) if count else Samples((), torch.empty(0, 3, 4, 4)))
    assert torch.equal(found.values, numbers.double())


def test_a_request_larger_than_the_server_takes_is_halved_until_it_fits(serve, remote, painted):
    plugin = Number()
    url = serve(plugin, limits=Limits(size=3 * 64 * 64 * 3))
    assert remote(url)(painted(range(8), 64)).values.tolist() == list(range(8))
    assert plugin.sizes == [2, 2, 2, 2]
    with pytest.raises(PluginError, match="takes requests of 36864 bytes; an image of 128 x 128 pixels is larger"):
        remote(url)(painted([1], 128))


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0]])
def test_r031_another_number_of_scores_is_an_error_and_is_not_spread(faulty, remote, painted, values):
    faulty.steps = [lambda request: (200, {"id": request["id"], "values": values})]
    with pytest.raises(RunError, match=rf"returned {len(values)} values and 0 pieces of evidence on 2 images"):
        remote(faulty.url)(painted([1, 2]))
    assert len(faulty.asked) == 1


def test_evidence_on_some_images_only_is_an_error(faulty, remote, painted):
    faulty.steps = [lambda request: (200, {"id": request["id"], "values": [1, 2], "evidence": [{}]})]
    with pytest.raises(RunError, match="returned 2 values and 1 pieces of evidence on 2 images"):
        remote(faulty.url)(painted([1, 2]))


# Faults that pass


@pytest.mark.parametrize("fault", [(500, {"error": "x"}), (503, b"busy"), None, late], ids=["500", "503", "hung up", "late answer"])
def test_what_may_pass_is_tried_again(faulty, remote, painted, pauses, fault):
    faulty.steps = [fault, fault, right]
    with pytest.warns(UserWarning, match="failed, and is tried again"):
        assert remote(faulty.url)(painted([4, 2])).values.tolist() == [4, 2]
    assert len(faulty.asked) == 3
    assert faulty.asked[0] == faulty.asked[1] == faulty.asked[2]
    assert len(pauses) == 2


@pytest.mark.filterwarnings("ignore:reward")
def test_a_request_without_an_answer_in_time_is_tried_again(faulty, remote, painted, pauses):
    faulty.steps = [silence, right]
    start = time.perf_counter()
    assert remote(faulty.url, timeout=0.2)(painted([4])).values.tolist() == [4]
    assert time.perf_counter() - start < 5


def silence(request):
    """Answer nothing for longer than anyone waits; `time.sleep` is the client's, and not taken here."""
    Event().wait(1)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_refusal_is_not_tried_again(faulty, remote, painted, pauses, status):
    faulty.steps = [(status, {"error": "because"})]
    with pytest.raises(PluginError, match=f'reward "number" at {faulty.url} refused a request: {status}, because'):
        remote(faulty.url)(painted([1]))
    assert (len(faulty.asked), pauses) == (1, [])


def test_an_answer_that_is_no_answer_ends_the_run(faulty, remote, painted):
    faulty.steps = [(200, b"<html>welcome</html>")]
    with pytest.raises(RunError, match="gave an answer that can't be read: Invalid JSON"):
        remote(faulty.url)(painted([1]))


def test_pauses_double_up_to_half_a_minute_and_are_spread():
    for attempt, longest in enumerate([0.5, 1, 2, 4, 8, 16, 30, 30, 30]):
        drawn = [pause(attempt) for _ in range(200)]
        assert longest / 2 <= min(drawn) < 0.6 * longest
        assert 0.9 * longest < max(drawn) <= longest


# Faults that stay


@pytest.mark.filterwarnings("ignore:reward")
def test_r022_a_server_that_stays_down_ends_the_run_with_who_since_when_and_how_often(faulty, remote, painted, pauses):
    faulty.steps = [right, (500, {"error": "no GPU"})]
    score = remote(faulty.url, retries=3)
    score(painted([1]))
    before = datetime.now().astimezone().replace(microsecond=0)
    with pytest.raises(RunError) as error:
        score(painted([1]))
    words = str(error.value)
    assert words.startswith(f'reward "number" at {faulty.url} is down since ')
    assert words.endswith(": 4 tries failed, the last with 500, no GPU")
    since = datetime.fromisoformat(words.split("since ")[1].partition(": 4")[0])
    assert before <= since <= datetime.now().astimezone()
    assert (len(faulty.asked), len(pauses)) == (5, 3)


@pytest.mark.filterwarnings("ignore:reward")
def test_once_given_up_each_call_has_one_try_until_one_succeeds(faulty, remote, painted, pauses):
    faulty.steps = [(500, {})] * 4 + [(500, {}), right, (500, {}), right]
    score = remote(faulty.url, retries=3)
    with pytest.raises(RunError, match="4 tries failed"):
        score(painted([1]))
    with pytest.raises(RunError, match="5 tries failed"):
        score(painted([1]))
    assert score(painted([1])).values.tolist() == [1]
    assert score(painted([1])).values.tolist() == [1]
    assert len(faulty.asked) == 8


@pytest.mark.filterwarnings("ignore:reward")
def test_requests_under_way_together_give_up_together(faulty, remote, painted, pauses):
    faulty.steps = [(500, {})]
    with pytest.raises(RunError, match="is down since"):
        remote(faulty.url, retries=5, batch=1, parallel=4)(painted(range(40)))
    assert 6 <= len(faulty.asked) < 40  # not 40 times 6


@pytest.mark.filterwarnings("ignore:reward")
def test_r021_a_monitor_that_is_down_leaves_a_gap_and_comes_back(faulty, remote, painted, pauses):
    faulty.steps = [right, (500, {"error": "x"}), (500, {"error": "x"}), right]
    watch = Judge("watch", "source", remote(faulty.url, retries=1), monitor=True)
    assert watch.examine(painted([1])).values.tolist() == [1]
    assert watch.examine(painted([1])).values.isnan().all()
    assert "2 tries failed" in watch.failures[0]
    assert watch.examine(painted([1])).values.tolist() == [1]


def test_an_outage_counts_from_its_first_failure_and_is_forgotten_after_a_success():
    outage = Outage("it", retries=1)
    with pytest.warns(UserWarning):
        outage.failed(OSError("a"), 0)
    first = outage.since
    outage.over()
    with pytest.warns(UserWarning):
        outage.failed(OSError("b"), 0)
    assert outage.since is not first
    with pytest.raises(RunError, match="2 tries failed, the last with OSError: c"):
        outage.failed(OSError("c"), 1)


# Before anything else is loaded


def test_r030_a_server_that_is_not_there_is_found_before_the_model_loads(tmp_path, text, registry):
    """The backbone of this recipe raises when it is loaded."""
    path = tmp_path / "recipe.toml"
    with_remote = Registry((*registry.offers, Offer("reward", "remote", Remote, "vgrpo", "0.1.0")))
    sets = ["reward.0.use=remote", "reward.0.label=far", "reward.0.reward=number", "reward.0.url=http://127.0.0.1:9"]
    path.write_text(text)
    recipe = load(path, sets, with_remote)
    start = time.perf_counter()
    with pytest.raises(PluginError) as error:
        Trainer(recipe, CPU, lambda event: None)
    assert str(error.value).startswith('reward "number" at http://127.0.0.1:9 can\'t be reached\n  ConnectError')
    assert str(error.value).endswith("Start it with: vgrpo serve number")
    assert error.value.exit_code == 2
    assert time.perf_counter() - start < 5


def test_another_reward_is_refused(faulty, remote):
    for asked in ("numbers", "other/number", "./painted.py:Numbers"):
        with pytest.raises(PluginError, match=r'serves "number" \(tests 1\.0\)\n  Start it with: vgrpo serve'):
            remote(faulty.url, reward=asked)
    for asked in ("number", "tests/number", "./painted.py:Number"):
        assert callable(remote(faulty.url, reward=asked))


def test_other_options_are_refused_and_named(serve, remote):
    url = serve(Number(times=2))
    assert callable(remote(url, options={"times": 2}))
    assert callable(remote(url, options={"times": 2.0, "wrong": None}))
    with pytest.raises(PluginError) as error:
        remote(url, options={"tims": 2, "wrong": "x"})
    assert str(error.value).splitlines()[1:] == [
        '  unknown option "tims"; did you mean "times"?',
        "  times: 2.0 there, 1.0 asked for",
        "  wrong: None there, 'x' asked for",
        "  Make recipe and server agree.",
    ]


def test_another_version_of_the_protocol_is_refused(faulty, remote):
    faulty.described["protocol"] = 2
    with pytest.raises(PluginError, match="speaks version 2 of the protocol"):
        remote(faulty.url)


@pytest.mark.parametrize("described", [{"detail": "hello"}, [1], "x"])
def test_another_kind_of_server_is_refused(faulty, remote, described):
    faulty.described = described
    with pytest.raises(PluginError, match="is no `vgrpo serve`"):
        remote(faulty.url)


def test_a_server_that_is_loading_is_waited_for(serve, remote, painted):
    class Late(Number):
        def load(self, device):
            time.sleep(0.5)
            return super().load(device)

    assert remote(serve(Late(), loaded=False))(painted([5])).values.tolist() == [5]


def test_a_server_that_loads_for_too_long_is_an_error(serve, remote):
    class Late(Number):
        def load(self, device):
            time.sleep(1)
            return super().load(device)

    with pytest.raises(PluginError, match=r"is still loading after 0\.3 s"):
        remote(serve(Late(), loaded=False), startup=0.3)


def test_the_token_is_sent_from_the_environment(serve, remote, painted, monkeypatch):
    monkeypatch.setenv("SECRET", "s3cret")
    url = serve(Number(), token="s3cret")
    assert remote(url, token_env="SECRET")(painted([5])).values.tolist() == [5]
    with pytest.raises(PluginError, match="refused a request: 401"):
        remote(url)
    monkeypatch.setenv("SECRET", "other")
    with pytest.raises(PluginError, match="refused a request: 401"):
        remote(url, token_env="SECRET")


@pytest.mark.parametrize(
    ("value", "words"), [("", "holds no token"), ("two words", "holds blanks"), ("schlüssel", "other than ASCII")]
)
def test_a_token_that_can_not_be_sent_is_refused(monkeypatch, remote, value, words):
    monkeypatch.setenv("SECRET", value)
    with pytest.raises(PluginError, match=words):
        remote("http://127.0.0.1:9", token_env="SECRET")


def test_a_proxy_is_not_asked_for_addresses_of_this_machine(serve, remote, painted, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert remote(serve(Number()))(painted([5])).values.tolist() == [5]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, 'give either "url" or "python"'),
        ({"url": "http://a", "python": "python3"}, 'give either "url" or "python"'),
        ({"url": "localhost:8800"}, 'write "url" as http://host:port'),
        ({"url": "http://user:password@host"}, 'write "url" as http://host:port'),
        ({"url": "http://host:88000"}, 'write "url" as http://host:port'),
        ({"url": "http://host/?token=x"}, 'write "url" as http://host:port'),
        ({"url": "https://"}, 'write "url" as http://host:port'),
        ({"python": "python3", "token_env": "X"}, '"token_env" belongs to "url"'),
        ({"url": "http://a", "timeout": 0}, "greater than 0"),
        ({"url": "http://a", "timeout": math.inf}, "finite"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValidationError, match=words):
        Remote(reward="number", **options)


def test_several_clients_at_once_each_get_their_own_scores(serve, remote, painted):
    url = serve(Number())

    def client(index):
        numbers = [1000 * index + row for row in range(30)]
        return remote(url, batch=4, parallel=2)(painted(numbers)).values.tolist() == numbers

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(client, range(4)))
