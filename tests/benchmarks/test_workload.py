from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.__main__ import BENCHMARKS, parse
from benchmarks.cases.memory import allowed_bytes
from benchmarks.load import Answer, Batch, check_useful
from benchmarks.models import letter_tokens, write_letter_tokenizer, write_word_tokenizer
from benchmarks.prompts import Prompts, TokenPrompts
from benchmarks.servers import ServerFailed
from benchmarks.soak import is_idle, memory_check


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_letter_tokenizer(folder, 4096)
    return folder


def test_the_tokenizer_has_exactly_the_tokens_of_the_model(tokenizer_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 4096
    assert max(tokenizer.get_vocab().values()) == 4095
    assert tokenizer.decode([4095]).isalpha()


def test_padding_tokens_are_distinct() -> None:
    joined = [left + right for left, right in letter_tokens(5000)]
    assert len(joined) == len(set(joined)) == 5000


def test_prompts_have_the_length_asked_for_and_differ_from_the_start(tokenizer_folder: Path) -> None:
    prompts = Prompts(tokenizer_folder, seed=1)
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    made = prompts.several(20, 1024)
    assert all(1019 <= len(tokenizer.encode(prompt).ids) <= 1024 for prompt in made)
    assert len({prompt.split()[0] for prompt in made}) == 20


def test_the_same_seed_gives_the_same_prompts(tokenizer_folder: Path) -> None:
    assert Prompts(tokenizer_folder, 1).of(50) == Prompts(tokenizer_folder, 1).of(50)
    assert Prompts(tokenizer_folder, 1).of(50) != Prompts(tokenizer_folder, 2).of(50)


def test_decode_speed_leaves_the_first_token_out() -> None:
    answer = Answer(prompt_tokens=10, completion_tokens=11, cached_tokens=0, first_seconds=5.0, total_seconds=7.0)
    assert answer.decode_rate == 5
    assert Batch((answer, answer), wall_seconds=11).rate == 2


def test_an_answer_that_ended_early_is_not_measured() -> None:
    short = Answer(10, 3, 0, 0.1, 0.2)
    with pytest.raises(ServerFailed, match="3 of 16 tokens"):
        check_useful("side", short, 16)
    check_useful("side", short, 4)


def test_a_quick_run_is_shorter_and_options_go_first() -> None:
    names, options = parse(["single", "--quick", "--tokens", "8"])
    assert names == ["single"]
    assert (options.quick, options.tokens) == (True, 8)
    assert options.rounds < parse([])[1].rounds


def test_without_a_name_all_are_run_that_need_no_other_checkout() -> None:
    comparing = ("before", "fault_free", "packed", "packed_small")
    assert parse([])[0] == [name for name in BENCHMARKS if name not in comparing]
    for name in comparing:
        with pytest.raises(SystemExit):
            parse([name])


@pytest.mark.parametrize("arguments", [["nothing"], ["single", "--tokens", "1"], ["memory", "--model", "qwen2-75m"]])
def test_what_cannot_be_done_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)


def test_the_memory_bound_is_relative_and_fixed() -> None:
    assert allowed_bytes(1_000_000_000) == pytest.approx(1.4e9)


def test_memory_that_walks_fails_the_soak_and_memory_that_breathes_does_not() -> None:
    flat = [(float(second), {"1 engine": 1_000_000_000 + second % 7 * 1_000_000}) for second in range(100)]
    leaking = [(float(second), {"1 engine": 1_000_000_000 + second * 3_000_000}) for second in range(100)]
    assert memory_check(flat, 100).passed
    assert not memory_check(leaking, 100).passed


def test_a_process_that_was_replaced_fails_the_soak() -> None:
    samples = [(float(second), {"1 engine" if second < 70 else "2 engine": 5}) for second in range(100)]
    assert not memory_check(samples, 100).passed


def test_an_engine_is_idle_when_nothing_runs_waits_or_is_open() -> None:
    idle = {"engine": {"running": 0, "queued": 0}, "requests": {"open": 0}}
    assert is_idle(idle)
    assert not is_idle(idle | {"requests": {"open": 1}})


def test_what_a_word_model_says_is_the_same_tokens_when_it_comes_back(tmp_path: Path) -> None:
    first_word = write_word_tokenizer(tmp_path, 4096)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 4096
    said = random.Random(1).choices(range(first_word, 4096), k=500)
    assert tokenizer.encode(tokenizer.decode(said)).ids == said


def test_no_two_prompts_of_token_ids_share_their_first(tokenizer_folder: Path) -> None:
    prompts = TokenPrompts(tokenizer_folder, seed=1)
    made = [prompts.of(5) for _ in range(500)]
    assert {len(prompt) for prompt in made} == {5}
    assert len({prompt[0] for prompt in made}) == 500
    assert max(map(max, made)) < 4096


def test_a_large_model_is_for_those_benchmarks_that_have_one() -> None:
    assert parse(["agents", "--large"])[1].large
    with pytest.raises(SystemExit):
        parse(["single", "--large"])


def test_llama_cpp_is_shown_beside_one_benchmark_only(tmp_path: Path) -> None:
    (tmp_path / "src" / "chorus").mkdir(parents=True)
    python = tmp_path / "python"
    python.touch()
    before = ["--before", str(tmp_path)]
    assert parse(["packed_small", *before, "--llama", str(python)])[1].llama == str(python)
    for arguments in (["single", "--llama", str(python)], ["packed_small", *before, "--llama", str(tmp_path / "none")]):
        with pytest.raises(SystemExit):
            parse(arguments)
