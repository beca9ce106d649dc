from __future__ import annotations

import functools
import gc
import logging
import os
import signal
from collections.abc import Iterator

import httpx._transports.default as transports
import mlx.core as mx
import pytest
from hypothesis import settings

from tests.support import device_thread, state

pytest_plugins = [
    "tests.support.failure_logs",
    "tests.support.linux",
    "tests.support.refusals",
    "tests.support.times",
]

# Before anything starts or is read: each worker process has its own.
state.keep_apart()

# Whoever starts tests in the background or behind nohup has them, and all they start, ignore what tests send.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# Machines that run tests are busy: how long an example takes says nothing. Examples are the same in every run.
settings.register_profile("chorus", deadline=None, derandomize=True)
# For `make fuzz`: others in every run, from the seed that it is given.
settings.register_profile("long", deadline=None, max_examples=3000, database=None, print_blob=True)
settings.load_profile("chorus")

# On a CPU every function that upstream compiles first runs a C++ compiler for a second, and there are hundreds in all
# architectures. In this process they are interpreted; the servers, ranks and workers that tests start run as users' do.
mx.disable_compile()
device_thread.keep_from_interrupting()

# Each of the many clients would read the certificates of all authorities again, for a fortieth of a second.
transports.create_ssl_context = functools.cache(transports.create_ssl_context)

# A thread that outlives its test may log to what was captured for that test, which is closed by then.
logging.raiseExceptions = False

# Reading all test files makes a great many objects and no garbage, and looking for some takes a third of the time.
gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """A command that is run in this process may set variables for those it starts: the next test has its own."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() | before.keys():
        if name == "PYTEST_CURRENT_TEST" or os.environ.get(name) == before.get(name):
            continue
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
