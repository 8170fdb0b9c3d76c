from __future__ import annotations

from vgrpo_cli.alerts import Alerts

START = {"ocr": 0.5, "edge_density": 0.04, "brightness": 0.6, "dark_fraction": None}


def test_r117_what_falls_clearly_while_the_reward_rises_is_said_once():
    alerts = Alerts({"ocr": 1.0})
    assert alerts.evaluated(START | {"ocr": 0.6, "edge_density": 0.03}, START) == []  # a quarter less is not clear
    (said,) = alerts.evaluated(START | {"ocr": 0.7, "edge_density": 0.02}, START)
    assert said == "edge_density has fallen from 0.04 to 0.02 while ocr rose: look at the images, the reward may be gamed"
    assert alerts.evaluated(START | {"ocr": 0.8, "edge_density": 0.01}, START) == []


def test_fewer_dark_pixels_are_no_sign():
    start = START | {"dark_fraction": 0.001}
    assert Alerts({"ocr": 1.0}).evaluated(start | {"ocr": 0.9, "dark_fraction": 0.0}, start) == []


def test_nothing_is_said_while_no_reward_rises():
    assert Alerts({"ocr": 1.0}).evaluated(START | {"ocr": 0.4, "edge_density": 0.01}, START) == []


def test_a_reward_with_a_negative_weight_rises_when_its_score_falls():
    assert len(Alerts({"ocr": -1.0}).evaluated(START | {"ocr": 0.4, "edge_density": 0.01}, START)) == 1


def test_what_is_trained_on_may_fall_and_what_is_missing_is_no_fall():
    falls = START | {"ocr": 0.9, "brightness": 0.1, "edge_density": None}
    assert Alerts({"ocr": 1.0, "brightness": -1.0}).evaluated(falls, START) == []


def test_images_of_a_group_that_become_alike_are_said_once():
    alerts = Alerts({"ocr": 1.0})
    lines = [alerts.iterated({"group/diversity": value}) for value in (1.0, 0.8, 0.6, 0.5)]
    assert [len(line) for line in lines] == [0, 0, 1, 0]
    assert lines[2][0].startswith("group/diversity has fallen from 1 to 0.6: the images of one prompt become alike")


def test_r011_more_than_half_of_the_groups_without_signal_is_said_once():
    alerts = Alerts({"ocr": 1.0})
    lines = [alerts.iterated({"group/zero_std_fraction": share}) for share in (0.5, 0.75, 1.0)]
    assert lines == [[], ["in 75% of the groups all rewards are equal: they teach nothing; raise batch.group"], []]
