"""Who holds how much of this machine's memory: booked in a small file before anything is loaded, and never guessed.

What happens to be free says little while others load beside us. So the first who books writes down how much there is to
share, measured while nothing of ours was loaded, and that stands until the last booking is gone. A booking belongs to a
process: when that has ended, however it ended, the booking counts for nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from chorus.errors import ChorusError
from chorus.platform.process.mark import lives, mark
from chorus.platform.sizes import size
from chorus.platform.storage.files import write_whole
from chorus.platform.storage.paths import machine_name, private_folder, state_dir

log = logging.getLogger("chorus.ledger")

LOCK_SECONDS = 10.0
_LOOK_SECONDS = 0.01
_MOST_BOOKINGS = 256
_MOST_LETTERS = 200
_MAX_BYTES = 256 << 10


class LedgerError(ChorusError):
    """The ledger cannot be used as it was asked for: names it and the remedy."""


@dataclass(frozen=True)
class Booking:
    """One owner's part of the memory, for as long as its process lives."""

    owner: str
    """Its name within its process: a group, a rank."""
    amount: int
    what: str
    """What it is for, to people: a model."""
    pid: int
    mark: str
    """Tells the process from a later one with its number."""


class NoRoom(ChorusError):
    """A booking does not fit beside the others: names the figures, who holds what, and the remedy."""

    def __init__(self, what: str, asked: int, budget: int, others: tuple[Booking, ...]) -> None:
        held = sum(booking.amount for booking in others)
        if others:
            listed = ", ".join(f"{booking.what} ({size(booking.amount)})" for booking in others)
            taken = f"{size(held)} of {size(budget)} are booked by {listed}: unload one of them, or"
        else:
            taken = f"this machine has {size(budget)} to share:"
        super().__init__(
            f"no room for {what}: it needs {size(asked)} and {size(max(0, budget - held))} are left; "
            f"{taken} choose a smaller model or context, or more machines"
        )
        self.asked, self.budget, self.others = asked, budget, others

    @property
    def free(self) -> int:
        return max(0, self.budget - sum(booking.amount for booking in self.others))


@dataclass(frozen=True)
class _Page:
    """What the file says: the budget counts while there are bookings."""

    budget: int = 0
    bookings: tuple[Booking, ...] = ()

    @property
    def booked(self) -> int:
        return sum(booking.amount for booking in self.bookings)

    def without(self, owner: str, pid: int) -> tuple[Booking, ...]:
        return tuple(booking for booking in self.bookings if (booking.owner, booking.pid) != (owner, pid))


def own_file(state: Path | None = None) -> Path:
    """This machine's ledger; machines that share a home folder have one each."""
    return (state or state_dir()) / f"ledger-{machine_name()}.json"


def granted(needs: int, free: int, more: bool, most: int = 0) -> int:
    """How much is booked for who needs so much, where so much is free; `most` is enough, where that is known."""
    if not needs:
        return max(1, free)
    if most:
        return max(needs, min(most, free))
    return needs + max(0, free - needs) // 2 if more else needs


class Ledger:
    """The bookings of one machine, shared by all processes that name the same file."""

    def __init__(self, file: Path, budget: int | Callable[[], int]) -> None:
        """`budget`: what there is to share, or what measures it when nothing is booked."""
        self._file = file
        self._budget = budget

    def book(self, owner: str, amount: int, what: str, force: bool = False) -> Booking:
        """Take a part before loading; raises NoRoom. Who has one already gets another instead. `force`: fits or not."""
        wanted = _booking(owner, amount, what)
        with self._page() as page:
            self._place(page, wanted, force)
        return wanted

    def grant(self, owner: str, needs: int, what: str, more: bool, most: int = 0) -> Booking:
        """Book what is needed and, where caches can use `more`, half of what would be left, so that others find room
        too, or up to `most` where that is given; all there is where nobody knows what is needed (0). Raises NoRoom.
        """
        with self._page() as page:
            known = page.read()
            # Measured once: a moment later it may be another figure.
            budget, wanted = self._budget_of(known), _booking(owner, 0, what)
            others = sum(booking.amount for booking in known.without(wanted.owner, wanted.pid))
            wanted = replace(wanted, amount=granted(needs, budget - others, more, most))
            self._place(page, wanted, force=False, budget=budget)
        return wanted

    def change(self, owner: str, amount: int, force: bool = False) -> Booking:
        """Make a booking of this process larger or smaller; raises NoRoom, and then it stays as it was."""
        with self._page() as page:
            mine = [booking for booking in page.read().bookings if _is_of_this_process(booking, owner)]
            if not mine:
                raise LedgerError(f"{owner} has nothing booked in {self._file}: book it first")
            changed = replace(mine[0], amount=amount)
            self._place(page, changed, force or amount <= mine[0].amount)
        return changed

    def release(self, owner: str) -> None:
        """Give a part back, once its processes are gone; where nothing is booked, nothing happens."""
        with self._page() as page:
            known = page.read()
            mine = [booking for booking in known.bookings if _is_of_this_process(booking, owner)]
            if not mine:
                return
            left = replace(known, bookings=tuple(booking for booking in known.bookings if booking not in mine))
            page.write(left)
        log.info("released %s of %s: %s", _mb(mine[0].amount), _named(mine[0]), _sums(left))

    def bookings(self) -> tuple[Booking, ...]:
        with self._page() as page:
            return page.read().bookings

    def budget(self) -> int:
        with self._page() as page:
            return self._budget_of(page.read())

    def free(self) -> int:
        """What can still be booked."""
        with self._page() as page:
            known = page.read()
            return max(0, self._budget_of(known) - known.booked)

    def _place(self, page: _File, wanted: Booking, force: bool, budget: int | None = None) -> None:
        if wanted.amount < 0:
            raise LedgerError(f"{_named(wanted)}: {wanted.amount} bytes cannot be booked")
        known = page.read()
        budget = self._budget_of(known) if budget is None else budget
        others = known.without(wanted.owner, wanted.pid)
        if len(others) >= _MOST_BOOKINGS:
            raise LedgerError(f"{self._file} holds {len(others)} bookings, the most there may be: unload something")
        if not force and sum(booking.amount for booking in others) + wanted.amount > budget:
            raise NoRoom(wanted.what, wanted.amount, budget, others)
        booked = _Page(budget, (*others, wanted))
        page.write(booked)
        log.info("booked %s for %s: %s", _mb(wanted.amount), _named(wanted), _sums(booked))

    def _budget_of(self, page: _Page) -> int:
        if page.bookings:
            return page.budget
        return self._budget if isinstance(self._budget, int) else self._budget()

    @contextlib.contextmanager
    def _page(self) -> Iterator[_File]:
        try:
            private_folder(self._file.parent)
            lock = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _unusable(self._file, error) from None
        try:
            _wait_for(lock, self._file)
            yield _File(self._file)
        finally:
            os.close(lock)


class _File:
    """The file while it is locked. Whoever reads it finds the living only, and leaves them only."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> _Page:
        try:
            with self._path.open("rb") as stream:
                content = stream.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return _Page()
        except OSError as error:
            raise _unusable(self._path, error) from None
        try:
            page = _parsed(content)
        except (ValueError, TypeError, KeyError, RecursionError):
            # Said once: what is written now can be read.
            log.warning("%s is no ledger of ours and is begun anew: what was booked in it counts no more", self._path)
            page = _Page()
            self.write(page)
            return page
        living = tuple(booking for booking in page.bookings if lives(booking.pid, booking.mark))
        gone = [booking for booking in page.bookings if booking not in living]
        page = replace(page, bookings=living)
        if gone:
            self.write(page)
        for booking in gone:
            log.info("released %s of %s, whose process is gone: %s", _mb(booking.amount), _named(booking), _sums(page))
        return page

    def write(self, page: _Page) -> None:
        try:
            write_whole(self._path, json.dumps(asdict(page)).encode(), mode=0o600)
        except OSError as error:
            # A full disk must stop nobody who serves: what is loaded meanwhile counts for nobody else.
            log.warning("%s; until then nobody knows what is booked here", _unusable(self._path, error))


def _parsed(content: bytes) -> _Page:
    if len(content) > _MAX_BYTES:
        raise ValueError("too large")
    told = json.loads(content)
    bookings = tuple(Booking(**entry) for entry in told["bookings"])
    for booking in bookings:
        texts, numbers = (booking.owner, booking.what, booking.mark), (booking.amount, booking.pid)
        if not all(isinstance(text, str) for text in texts) or not all(_is_count(number) for number in numbers):
            raise ValueError("fields of other kinds")
    if not _is_count(told["budget"]):
        raise ValueError("no budget")
    return _Page(told["budget"], bookings)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _wait_for(lock: int, file: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LedgerError(
                    f"{file} was locked by another process for {LOCK_SECONDS:g} s: is one of them stopped?"
                ) from None
            time.sleep(_LOOK_SECONDS)
        except OSError as error:
            raise _unusable(file, error) from None


def _unusable(file: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"memory cannot be booked in {file}: {error.strerror or error}; make its folder writable, or set CHORUS_STATE "
        "to one that is"
    )


def _booking(owner: str, amount: int, what: str) -> Booking:
    pid = os.getpid()
    return Booking(owner[:_MOST_LETTERS], amount, what[:_MOST_LETTERS], pid, mark(pid))


def _is_of_this_process(booking: Booking, owner: str) -> bool:
    return (booking.owner, booking.pid) == (owner[:_MOST_LETTERS], os.getpid())


def _named(booking: Booking) -> str:
    return f"{booking.what} ({booking.owner} of process {booking.pid})"


def _mb(amount: int) -> str:
    return f"{amount / 1e6:.1f} MB"


def _sums(page: _Page) -> str:
    return f"{page.booked / 1e6:.1f} of {page.budget / 1e6:.1f} MB are booked"
