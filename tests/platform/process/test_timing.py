"""Beats and silences fit together, or are refused with both their names; and they reach whoever goes by them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields, replace

import pytest

from chorus.platform.process.timing import BEATS, DEFAULTS, BadTiming, WatchTimes


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"silence_seconds": 1.4}, ("silence_seconds", "tick_seconds")),
        ({"tick_seconds": 1.1}, ("silence_seconds", "tick_seconds")),
        ({"look_seconds": 3.1}, ("silence_seconds", "look_seconds")),
        ({"stopped_seconds": 0.9}, ("stopped_seconds", "tick_seconds")),
        ({"loop_silence_seconds": 2.9}, ("loop_silence_seconds", "loop_tick_seconds")),
        ({"join_silence_seconds": 119}, ("join_silence_seconds", "join_seconds")),
        ({"heartbeat_seconds": 3}, ("agent_silence_seconds", "heartbeat_seconds")),
        ({"agent_silence_seconds": 1.4}, ("agent_silence_seconds", "heartbeat_seconds")),
        ({"abandon_seconds": 20}, ("lease_seconds", "abandon_seconds")),
        ({"lease_seconds": 4}, ("lease_seconds", "abandon_seconds")),
        ({"peer_silence_seconds": 14}, ("peer_silence_seconds", "peer_heartbeat_seconds")),
    ],
)
def test_two_that_do_not_fit_are_refused_by_name(given: dict[str, float], names: tuple[str, str]) -> None:
    with pytest.raises(BadTiming) as refused:
        WatchTimes(**given)
    assert refused.value.settings == names
    assert f"watch.{names[1]} is" in str(refused.value)


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan, 0.0])
@pytest.mark.parametrize("setting", [field.name for field in fields(WatchTimes)])
def test_a_time_that_cannot_be_is_refused(setting: str, value: float) -> None:
    if (setting, value) == ("silence_seconds", 0.0):
        assert replace(DEFAULTS, silence_seconds=0).silence_seconds == 0  # nothing is ever judged
        return
    with pytest.raises(BadTiming, match="must be"):
        replace(DEFAULTS, **{setting: value})


def test_a_silence_may_be_just_a_few_beats_long() -> None:
    assert WatchTimes(silence_seconds=BEATS * DEFAULTS.tick_seconds).silence_seconds == 1.5


def test_what_is_told_to_a_process_or_an_agent_is_what_it_goes_by(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = WatchTimes(**{name: seconds * 2 for name, seconds in asdict(DEFAULTS).items()})
    assert WatchTimes.told(timing.metadata()) == timing
    ((name, told),) = timing.metadata()
    of_another_release = json.dumps({**json.loads(told), "unheard_of_seconds": 1})
    assert WatchTimes.told([(name, of_another_release)]) == timing
    assert WatchTimes.told(()) == DEFAULTS
    assert WatchTimes.told() == DEFAULTS
    (variable,) = timing.environment().items()
    monkeypatch.setenv(*variable)
    assert WatchTimes.told() == timing
