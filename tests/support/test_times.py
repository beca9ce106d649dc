from __future__ import annotations

from pathlib import Path

from tests.support.times import Times, load

ROOT = Path(__file__).parents[2]
TIMES = Times(budget_seconds=10, workers=2, files={"tests/SHORT.py": 1.0, "tests/LONG.py": 9.0})


def test_all_tests_together_keep_to_their_budget() -> None:
    times = load()
    assert times.run_seconds <= times.budget_seconds, "tests take longer than tests/times.json allows them to"


def test_only_files_that_exist_are_counted() -> None:
    assert [file for file in load().files if not (ROOT / file).is_file()] == []


def test_the_longest_file_comes_first_after_those_that_were_never_measured() -> None:
    files = ["tests/SHORT.py", "tests/NEW.py", "tests/LONG.py"]
    assert sorted(files, key=TIMES.longest_first) == ["tests/NEW.py", "tests/LONG.py", "tests/SHORT.py"]


def test_a_run_is_as_long_as_its_workers_need_together() -> None:
    assert TIMES.run_seconds == 5


def test_a_run_of_all_tests_forgets_files_that_are_gone_and_a_run_of_some_does_not() -> None:
    seconds = {"tests/SHORT.py": 2.04}
    assert TIMES.measured(seconds, all_files=True).files == {"tests/SHORT.py": 2.0}
    assert TIMES.measured(seconds, all_files=False).files == {"tests/SHORT.py": 2.0, "tests/LONG.py": 9.0}
