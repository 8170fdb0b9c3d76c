"""The client of OpenAI's chat API against a server on this machine."""

import math
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest

from vgrpo_core import PluginError, RunError
from vgrpo_rewards.answers import Failure

from .chat_server import Reply, serve, text, tokens

chat = pytest.importorskip("vgrpo_rewards.chat")


def client(url, **options):
    return chat.Chat("vlm_judge", url, options.pop("model", "judge"), **options)


def pictures(count):
    """Return pictures that are told apart by their first value."""
    return (
        np.random.default_rng(0).integers(0, 256, (count, 6, 5, 3), np.uint8) // 2
        + np.arange(count, dtype=np.uint8)[:, None, None, None]
    )


@pytest.fixture
def waits(monkeypatch):
    """Note waits instead of waiting."""
    waited = []
    monkeypatch.setattr(chat, "sleep", waited.append)
    return waited


def failing(times, *, otherwise="5", **reply):
    """Fail the first `times` requests, then answer."""
    left = [times]

    def answer(asked):
        left[0] -= 1
        return Reply("busy", **reply) if left[0] >= 0 else text(otherwise)

    return answer


def test_the_server_is_shown_each_image_as_it_is_with_its_question():
    images = pictures(3)
    with serve(lambda asked: text(asked.question.upper())) as server:
        assert client(server.url).answers(["a", "b", "c"], images) == ["A", "B", "C"]
    for asked in server.asked:
        assert np.array_equal(asked.image, images["abc".index(asked.question)])
        assert asked.body | {"messages": None} == {"model": "judge", "messages": None, "temperature": 0, "max_tokens": 512}


def test_r031_answers_come_back_in_order_and_side_by_side():
    together = threading.Barrier(4, timeout=10)

    def reply(asked):
        together.wait()  # breaks unless four are asked at once
        time.sleep(0.01 * (7 - int(asked.question)))  # the first is answered last
        return text(asked.question)

    with serve(reply) as server:
        assert client(server.url, parallel=4).answers([str(i) for i in range(8)], pictures(8)) == [str(i) for i in range(8)]
    assert server.at_once == 4


def test_another_number_of_questions_than_images_is_an_error():
    with serve(lambda asked: text("5")) as server, pytest.raises(ValueError, match="argument 2 is longer"):
        client(server.url).answers(["a", "b"], pictures(3))


def test_no_images_need_no_answer():
    with serve(lambda asked: text("5")) as server:
        assert client(server.url).answers([], pictures(0)) == []
    assert server.asked == []


def test_first_tokens_are_asked_for_and_read():
    logarithms = {"Yes": math.log(0.6), "No": math.log(0.3)}
    with serve(lambda asked: tokens(logarithms)) as server:
        assert client(server.url).first_tokens(["?"], pictures(1)) == [list(logarithms.items())]
    options = {key: server.asked[0].body[key] for key in ("max_tokens", "logprobs", "top_logprobs")}
    assert options == {"max_tokens": 1, "logprobs": True, "top_logprobs": 20}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_failure_that_may_pass_is_tried_again_with_longer_and_longer_waits(status, waits):
    with serve(failing(3, status=status)) as server:
        assert client(server.url, retries=3).answers(["?"], pictures(1)) == ["5"]
    assert waits == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("status", [302, 400, 401, 404, 422])
def test_a_failure_for_good_is_not_tried_again(status, waits):
    with serve(failing(1, status=status)) as server, pytest.raises(RunError, match=f"HTTP {status}: busy"):
        client(server.url).answers(["?"], pictures(1))
    assert len(server.asked) == 1
    assert waits == []


def test_there_is_an_end_to_trying(waits):
    with serve(failing(9, status=500)) as server, pytest.raises(RunError):
        client(server.url, retries=2).answers(["?"], pictures(1))
    assert len(server.asked) == 3


@pytest.mark.parametrize(("asked", "waited"), [("7", 7.0), ("0", 0.5), ("3600", 60.0), ("soon", 0.5), ("-3", 0.5), ("1e999", 0.5)])
def test_retry_after_is_honoured_up_to_a_minute(asked, waited, waits):
    with serve(failing(1, status=429, headers={"Retry-After": asked})) as server:
        client(server.url).answers(["?"], pictures(1))
    assert waits == [waited]


def test_retry_after_may_be_a_date(waits):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    with serve(failing(1, status=503, headers={"Retry-After": date})) as server:
        client(server.url).answers(["?"], pictures(1))
    assert waits[0] == pytest.approx(19, abs=1.5)


def test_r028_one_image_that_hangs_is_missing_and_the_others_are_not(waits):
    free = threading.Event()

    def reply(asked):
        if asked.question == "b":
            free.wait(20)
        return text("5")

    with serve(reply) as server:
        begun = time.monotonic()
        found = client(server.url, timeout=0.2, retries=1).answers(["a", "b", "c"], pictures(3))
        took = time.monotonic() - begun
        free.set()
    assert (found[0], found[2]) == ("5", "5")
    assert isinstance(found[1], Failure)
    assert "ReadTimeout" in found[1].reason
    assert took < 5
    assert [asked.question for asked in server.asked].count("b") == 2


def test_a_connection_that_breaks_is_tried_again(waits):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up():
            for _ in range(2):
                listener.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(RunError, match=r"RemoteProtocolError|ReadError"):
            client(f"http://127.0.0.1:{listener.getsockname()[1]}", retries=1).answers(["?"], pictures(1))
    assert waits == [0.5]


def test_r022_a_server_that_answers_nothing_stops_the_run(waits):
    with serve(failing(99, status=500)) as server, pytest.raises(RunError) as error:
        client(server.url, retries=0).answers(["?"] * 5, pictures(5))
    assert str(error.value) == (
        f'reward "vlm_judge": {server.url} answered none of 5 questions, the first because of HTTP 500: busy'
    )


@pytest.mark.parametrize("reply", [Reply("<html>"), Reply({}), Reply({"choices": []}), Reply([1]), text(None)])
def test_an_answer_of_another_form_is_a_failure_and_not_tried_again(reply, waits):
    with serve(lambda asked: reply if asked.question == "odd" else text("5")) as server:
        found = client(server.url).answers(["odd", "?"], pictures(2))
    assert isinstance(found[0], Failure)
    assert found[0].reason.startswith("an answer of another form")
    assert found[1] == "5"
    assert waits == []


def test_tokens_without_logarithms_are_a_failure():
    with serve(lambda asked: text("Yes") if asked.question == "odd" else tokens({"Yes": 0.0})) as server:
        found = client(server.url).first_tokens(["odd", "?"], pictures(2))
    assert isinstance(found[0], Failure)
    assert found[1] == [("Yes", 0.0)]


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_an_endpoint_without_a_path_means_v1(path):
    with serve(lambda asked: text("5")) as server:
        judge = client(server.url + path)
        judge.check()
        assert judge.answers(["?"], pictures(1)) == ["5"]


def test_the_key_goes_to_the_server_and_into_no_message():
    secret = "sk-very-secret"
    with serve(lambda asked: text("5")) as server:
        judge = client(server.url, key=secret)
        judge.answers(["?"], pictures(1))
        client(server.url).answers(["?"], pictures(1))
    first, second = (asked.headers for asked in server.asked)
    assert first["Authorization"] == f"Bearer {secret}"
    assert "Authorization" not in second
    assert secret not in repr(judge)


def test_an_unknown_model_is_named_with_those_that_the_server_has():
    with serve(lambda asked: text("5"), models=["Qwen2.5-VL-7B", "other"]) as server, pytest.raises(PluginError) as error:
        client(server.url, model="Qwen2.5-VL-7b").check()
    what = f'reward "vlm_judge": {server.url} has no model "Qwen2.5-VL-7b"; did you mean "Qwen2.5-VL-7B"?'
    assert str(error.value) == f"{what}\n  it has: Qwen2.5-VL-7B, other"


def test_r030_a_server_that_is_not_there_is_named_with_its_url():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(PluginError) as error:
        client(url).check()
    assert f'reward "vlm_judge": {url}/v1/models can\'t be read\n  ConnectError' in str(error.value)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (Reply("who are you?", 401), "HTTP 401: who are you?"),
        (Reply("<html>"), "is no OpenAI-compatible server"),
        (Reply({}), "is no OpenAI"),
    ],
)
def test_a_server_that_does_not_list_its_models_is_refused(models, message):
    with serve(lambda asked: text("5"), models) as server, pytest.raises(PluginError, match=message.replace("?", r"\?")):
        client(server.url).check()
