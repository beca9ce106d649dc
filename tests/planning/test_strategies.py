from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from chorus.config.strategies import STRATEGIES, Strategy
from chorus.planning.strategies import METHODS

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_planner_knows_how_to_follow_every_strategy_that_can_be_asked_for() -> None:
    assert tuple(STRATEGIES) == get_args(Strategy)
    assert {"auto", *METHODS} == set(STRATEGIES)


def test_the_document_says_of_each_strategy_what_the_settings_say() -> None:
    (table,) = re.findall(r"\| strategy \| what it does \|\n\| --- \| --- \|\n((?:\|.*\n)+)", DOCUMENT.read_text())
    assert dict(re.findall(r"\| `(\w+)` \| (.*) \|", table)) == STRATEGIES
