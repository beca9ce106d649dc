from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import parse
from benchmarks.cases import decode
from benchmarks.flow import Window, longest_pause, words
from benchmarks.models import write_word_tokenizer, zero_rows
from benchmarks.prompts import TokenPrompts
from benchmarks.report import Result, write, write_unfinished
from benchmarks.run import Options, execute, result_name
from benchmarks.servers import ServerFailed


def test_only_tokens_between_the_last_first_one_and_the_first_end_count() -> None:
    window = Window(("a", "b"), tokens=3)
    for stream, moment, tokens in (("a", 1.0, 1), ("a", 2.0, 1), ("b", 4.0, 1), ("a", 5.0, 2), ("b", 5.5, 1)):
        window.add(stream, moment, tokens)
        assert window.closed is None
    window.add("a", 6.0, 1)
    window.add("b", 6.1, 1)
    assert (window.opened, window.closed) == (4.0, 6.0)
    assert window.rate == (3 + 1) / 2


def test_a_window_closes_when_a_stream_ends() -> None:
    window = Window(("a", "b"), tokens=100)
    window.add("a", 0.0, 1)
    window.add("b", 1.0, 1)
    window.add("a", 2.0, 1)
    window.end(2.0)
    window.end(3.0)
    assert window.rate == 1


def test_streams_that_never_all_decode_have_no_rate() -> None:
    window = Window(("a", "b"), tokens=100)
    window.add("a", 0.0, 1)
    window.end(2.0)
    with pytest.raises(ServerFailed, match="--tokens"):
        _ = window.rate


def test_tokens_are_counted_by_their_capitals_and_prompts_of_words_keep_their_tokens(tmp_path: Path) -> None:
    write_word_tokenizer(tmp_path, 4096)
    prompts = TokenPrompts(tmp_path, seed=1)
    assert words(prompts.text(prompts.of(300))) == 300
    assert words("") == 0


def test_a_pause_counts_where_it_ends_after_the_beginning() -> None:
    assert longest_pause([0.0, 5.0, 6.0, 8.5], begin=5.5) == 2.5
    assert longest_pause([0.0, 5.0, 6.0], begin=4.0) == 5.0
    assert longest_pause([1.0], begin=0.0) == 0.0


def test_rows_are_set_to_zero_in_the_file_itself(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    header = {"a": {"dtype": "U8", "shape": [3, 2], "data_offsets": [0, 6]}, "__metadata__": {}}
    header["b"] = {"dtype": "U8", "shape": [2], "data_offsets": [6, 8]}
    encoded = json.dumps(header).encode()
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + bytes(range(1, 9)))
    zero_rows(file, {"a", "absent"}, 2)
    assert file.read_bytes()[-8:] == bytes([0, 0, 0, 0, 5, 6, 7, 8])


def test_results_of_other_models_and_parts_have_other_names() -> None:
    assert result_name("decode", Options()) == "decode"
    assert result_name("before", Options(parts=("1 rank",))) == "before-1-rank"
    assert result_name("decode", Options(large=True, bits=4, parts=("short", "long"))) == "decode-large-4bit-short-long"


def test_the_parts_of_a_benchmark_are_its_own() -> None:
    names, options = parse(["decode", "--large", "--parts", "short,long", "--no-peer", "--bits", "4", "--out", "x"])
    assert (names, options.parts, options.peer, options.bits, options.out) == (
        *(["decode"], ("short", "long"), False, 4, "x"),
    )
    assert parse(["decode"])[1].peer
    refused = (["decode", "--parts", "tall"], ["single", "--no-peer"], ["decode", "--bits", "4"], ["--parts", "short"])
    for arguments in refused:
        with pytest.raises(SystemExit):
            parse(arguments)


def test_what_was_measured_so_far_is_written_and_goes_when_the_result_is_whole(tmp_path: Path) -> None:
    from rich.console import Console

    from benchmarks.run import Benchmark, Run

    seen = []

    def measure(run: Run) -> list:
        run.interleave(lambda: run.samples.add("speed", "tok/s", "us", 1.0))
        seen.extend(tmp_path.iterdir())
        return []

    options = Options(rounds=1, out=str(tmp_path))
    result: Result = execute(Benchmark("made-up", "", measure), options, Console(quiet=True))
    (unfinished,) = seen
    assert json.loads(unfinished.read_text())["samples"]["figures"] == {"speed": {"us": [1.0]}}
    write_unfinished(result, tmp_path)
    assert [write(result, tmp_path)] == list(tmp_path.iterdir())


def test_a_stream_may_go_on_while_the_prompts_beside_it_are_read() -> None:
    assert decode.most_tokens(100, 32, 4096) >= 100 + 32 * 4096 // 256
