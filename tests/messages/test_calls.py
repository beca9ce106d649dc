"""Whoever is told why a call failed reads the other side's words or plain ones, whatever gRPC calls it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import grpc.aio
import pytest

from chorus.messages.calls import NOBODY_THERE, own_words, why_failed
from tests.support.plain_words import grpcs_words
from tests.support.sockets import short

DEADLINE = 60.0
Code = grpc.StatusCode


class Other:
    """The other side of a call: refuses, fails, answers too much, or is asked and waits."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix:{short(folder) / 'other.sock'}"
        self.refusal = Code.FAILED_PRECONDITION, ""
        self.asked = threading.Event()
        self.leaves = threading.Event()
        self.server = grpc.server(ThreadPoolExecutor(4))
        answers = {"Refuse": self.refuse, "Fail": self.fail, "Much": self.much, "Wait": self.wait}
        handlers = {name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in answers.items()}
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Other", handlers)])
        self.server.add_insecure_port(self.address)
        self.server.start()

    def refuse(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(*self.refusal)
        raise AssertionError("abort always raises")

    def fail(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        raise ValueError("a secret of /home/somebody")

    def much(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return b"x" * 10_000

    def wait(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.asked.set()
        assert self.leaves.wait(DEADLINE)
        return b""


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    other = Other(tmp_path_factory.mktemp("other"))
    yield other
    other.leaves.set()
    other.server.stop(None).wait(DEADLINE)


def failed(address: str, name: str, timeout: float = DEADLINE) -> grpc.RpcError:
    with grpc.insecure_channel(address, [("grpc.max_receive_message_length", 1000)]) as channel:
        with pytest.raises(grpc.RpcError) as found:
            channel.unary_unary(f"/Other/{name}")(b"", timeout=timeout)
        return found.value


@pytest.mark.parametrize(
    ("name", "timeout", "told"),
    [
        ("Fail", DEADLINE, "it failed on the call, and its log says why"),
        ("Unheard", DEADLINE, "it does not know this call: is it another release of Chorus?"),
        ("Much", DEADLINE, "the message is larger than it takes"),
        ("Wait", 0.05, "no answer came in time"),
    ],
)
def test_what_grpc_says_is_put_into_plain_words(other: Other, name: str, timeout: float, told: str) -> None:
    error = failed(other.address, name, timeout)
    assert why_failed(error) == told
    assert own_words(error) == ""
    assert grpcs_words(str(error)), "gRPC tells it itself otherwise"
    assert not grpcs_words(told)


def test_nobody_at_an_address_is_told_without_the_address(tmp_path: Path) -> None:
    error = failed(f"unix:{short(tmp_path) / 'gone.sock'}", "Wait")
    assert grpcs_words(error.details())
    assert why_failed(error) == NOBODY_THERE
    assert why_failed(failed("127.0.0.1:1", "Wait")) == NOBODY_THERE


def test_a_connection_that_breaks_under_a_call_was_closed(tmp_path: Path) -> None:
    leaving = Other(tmp_path)
    with grpc.insecure_channel(leaving.address) as channel:
        call = channel.unary_unary("/Other/Wait").future(b"", timeout=DEADLINE)
        assert leaving.asked.wait(DEADLINE)
        leaving.server.stop(None)
        error = call.exception()
    leaving.leaves.set()
    assert isinstance(error, grpc.RpcError)
    assert why_failed(error) in ("the connection was closed", "the call was given up")


@pytest.mark.parametrize(
    "refusal",
    [
        (Code.FAILED_PRECONDITION, "node mini2 is draining"),
        (Code.FAILED_PRECONDITION, "rank 1: the transport grpc is not one of ring, mpi"),
        (Code.INVALID_ARGUMENT, "a session's name is letters and digits"),
        (Code.NOT_FOUND, "node mini2 has not got the model"),
        (Code.UNAVAILABLE, "the engine is not ready: loading layers over grpc"),
        (Code.DEADLINE_EXCEEDED, "the cache was not cleared within 5 s: it is when the step under way is over"),
        (Code.UNIMPLEMENTED, "this server has no nodes, so there is nothing to plan anew"),
        (Code.RESOURCE_EXHAUSTED, "the queue is full"),
        (Code.INTERNAL, "the rank ran out of memory"),
    ],
    ids=str,
)
def test_the_other_sides_own_words_are_kept(other: Other, refusal: tuple[grpc.StatusCode, str]) -> None:
    other.refusal = refusal
    error = failed(other.address, "Refuse")
    assert own_words(error) == why_failed(error) == refusal[1]


def test_who_refuses_without_a_word_is_told_of_in_the_callers(other: Other) -> None:
    other.refusal = Code.UNAVAILABLE, ""
    error = failed(other.address, "Refuse")
    assert why_failed(error, "it refused our call") == "it refused our call"
    assert why_failed(error) == "the connection was closed"


@pytest.mark.parametrize("say", [lambda error: why_failed(error, "its agent is gone"), why_failed])
def test_a_call_on_a_connection_that_we_closed_ourselves_is_one_that_failed(say: Callable[[Exception], str]) -> None:
    assert say(grpc.aio.UsageError("Channel is closed.")) in ("its agent is gone", "the connection was closed")
