from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chorus.text.detokenizer import REPLACEMENT, PieceDecoder, WindowDecoder
from chorus.text.tokenizer import Tokenizer

EXACT = ("byte_level", "byte_level_with_added", "unigram", "word_piece")
EVERY = (*EXACT, "byte_fallback")

# Fixtures are made once for all examples on purpose: a tokenizer keeps no state between them.
relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
unicode_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.fixture(params=EVERY)
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=EXACT)
def exact_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


def streamed(tokenizer: Tokenizer, ids: Iterable[int], *, skip_special: bool = True) -> str:
    decoder = tokenizer.stream(skip_special=skip_special)
    return "".join(decoder.push(token) for token in ids) + decoder.flush()


@relaxed
@given(text=unicode_text, skip_special=st.booleans())
def test_streamed_text_equals_decoding_all_at_once(any_tokenizer: Tokenizer, text: str, skip_special: bool) -> None:
    ids = any_tokenizer.encode(text)
    assert streamed(any_tokenizer, ids, skip_special=skip_special) == any_tokenizer.decode(
        ids, skip_special=skip_special
    )


@relaxed
@given(data=st.data(), skip_special=st.booleans())
def test_any_tokens_at_all_stream_as_they_decode(
    exact_tokenizer: Tokenizer, data: st.DataObject, skip_special: bool
) -> None:
    """Among them tokens that make no valid text, and ids past the vocabulary."""
    ids = data.draw(st.lists(st.integers(0, exact_tokenizer.vocabulary + 3), max_size=40))
    assert streamed(exact_tokenizer, ids, skip_special=skip_special) == exact_tokenizer.decode(
        ids, skip_special=skip_special
    )


def test_every_token_alone_streams_as_it_decodes(any_tokenizer: Tokenizer) -> None:
    for token in range(any_tokenizer.vocabulary):
        assert streamed(any_tokenizer, [token], skip_special=False) == any_tokenizer.decode([token], skip_special=False)


def byte_token(byte: int) -> int:
    return 3 + byte


@relaxed
@given(data=st.data())
def test_byte_fallback_runs_that_are_text_stream_as_they_decode(byte_fallback: Tokenizer, data: st.DataObject) -> None:
    spelled = st.characters(exclude_categories=["Cs"]).map(lambda letter: [byte_token(b) for b in letter.encode()])
    plain = st.one_of(st.integers(0, 2), st.integers(259, byte_fallback.vocabulary + 3)).map(lambda token: [token])
    ids = [token for part in data.draw(st.lists(st.one_of(spelled, plain), max_size=25)) for token in part]
    assert streamed(byte_fallback, ids) == byte_fallback.decode(ids)


@relaxed
@given(data=st.data())
def test_byte_fallback_runs_that_are_no_text_keep_their_whole_characters(
    byte_fallback: Tokenizer, data: st.DataObject
) -> None:
    run = data.draw(st.binary(max_size=12))
    ids = [*byte_fallback.encode("Paris"), *map(byte_token, run), *byte_fallback.encode("Paris", special=False)]
    expected, rest = "", run
    while rest:
        for length in range(1, 5):
            try:
                expected += rest[:length].decode()
            except UnicodeDecodeError:
                continue
            rest = rest[length:]
            break
        else:
            expected, rest = expected + REPLACEMENT, rest[1:]
    assert streamed(byte_fallback, ids) == f"Paris{expected} Paris"


@relaxed
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters=[REPLACEMENT]), max_size=40))
@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_valid_text_never_shows_half_a_character(name: str, request: pytest.FixtureRequest, text: str) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    decoder = tokenizer.stream()
    ids = tokenizer.encode(text)
    pushed = [decoder.push(token) for token in ids]
    assert not any(REPLACEMENT in piece for piece in pushed)
    assert "".join(pushed) == tokenizer.decode(ids)
    assert decoder.flush() == ""


def test_an_emoji_split_over_tokens_appears_whole(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("🦊")
    assert len(ids) == 3
    decoder = byte_level.stream()
    assert [decoder.push(token) for token in ids] == ["", "", "🦊"]


def test_a_character_cut_off_at_the_end_appears_only_on_flush(byte_level: Tokenizer) -> None:
    decoder = byte_level.stream()
    assert [decoder.push(token) for token in byte_level.encode("🦊")[:2]] == ["", ""]
    assert decoder.flush() == REPLACEMENT
    assert decoder.flush() == ""


def test_a_replacement_character_in_the_text_is_not_held_back(byte_level: Tokenizer) -> None:
    decoder = byte_level.stream()
    assert "".join(decoder.push(token) for token in byte_level.encode(REPLACEMENT)) == REPLACEMENT


def test_special_tokens_inside_a_character_do_not_break_it(byte_level: Tokenizer) -> None:
    first, *rest = byte_level.encode("🦊")
    (special,) = byte_level.eos_ids
    assert streamed(byte_level, [first, special, *rest]) == "🦊"
    assert streamed(byte_level, [special], skip_special=False) == "<|im_end|>"


def test_only_the_first_leading_space_is_dropped(byte_fallback: Tokenizer) -> None:
    ids = byte_fallback.encode("  the dog")
    decoder = byte_fallback.stream()
    pieces = [decoder.push(token) for token in ids]
    assert "".join(pieces) == "  the dog"
    again = [decoder.push(token) for token in byte_fallback.encode(" the", special=False)]
    assert "".join(again) == "  the"


def test_streams_of_one_tokenizer_are_independent(byte_level: Tokenizer) -> None:
    fox, cat = byte_level.encode("🦊"), byte_level.encode("🐱")
    one, other = byte_level.stream(), byte_level.stream()
    pushed = [(one.push(left), other.push(right)) for left, right in zip(fox, cat, strict=True)]
    assert pushed[-1] == ("🦊", "🐱")


def test_common_vocabularies_take_the_constant_time_path(
    byte_level: Tokenizer, byte_fallback: Tokenizer, unigram: Tokenizer
) -> None:
    assert isinstance(byte_level.stream(), PieceDecoder)
    assert isinstance(byte_fallback.stream(), PieceDecoder)
    assert isinstance(unigram.stream(), WindowDecoder)


@pytest.mark.parametrize("shown", ["x", "", REPLACEMENT])
def test_the_window_stays_short_whatever_the_tokens_show(shown: str) -> None:
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return "".join("a" if token == 0 else shown for token in ids)

    decoder = WindowDecoder(decode, lambda _: False)
    text = "".join(decoder.push(token) for token in [0] + [1] * 500 + [0]) + decoder.flush()
    assert text == "a" + shown * 500 + "a"
    assert longest <= 20


def test_a_window_decoder_holds_back_a_character_cut_in_two() -> None:
    def decode(ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")

    decoder = WindowDecoder(decode, lambda _: False)
    assert [decoder.push(byte) for byte in "a€b".encode()] == ["a", "", "", "€", "b"]


def test_a_window_decoder_keeps_spaces_that_its_tokenizer_drops_in_front() -> None:
    def decode(ids: list[int]) -> str:
        return bytes(ids).decode().lstrip()

    decoder = WindowDecoder(decode, lambda _: False)
    assert "".join(decoder.push(byte) for byte in b"  a   b c") == "a   b c"
