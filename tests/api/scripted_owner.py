"""An owner of models for tests: speaks the real control link on a Unix socket, and has the table that a test makes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from chorus.messages.deploy import Demand, ModelRow, ModelState, PullRow, Report, Table, report_from_wire, table_to_wire
from chorus.messages.proto import control_pb2 as pb
from chorus.messages.proto.control_pb2_grpc import ControlServicer, add_ControlServicer_to_server
from tests.api.scripted_engine import DEADLINE

_LOOK_SECONDS = 0.5
STARTED = 1000.5
"""When every pull is begun."""

Refusal = tuple[grpc.StatusCode, str]


class ScriptedOwner(ControlServicer):
    def __init__(self, socket: Path, rows: list[ModelRow]) -> None:
        self.address = f"unix:{socket}"
        self.rows = {row.id: row for row in rows}
        self.version = 0
        self.reports: list[Report] = []
        self.asked: list[Any] = []
        """What was asked for by Find, Load, Unload, Pull and Plan."""
        self.refusal: Refusal | None = None
        """To the next of them."""
        self.pulls: tuple[PullRow, ...] = ()
        self.plans = "{}"
        """What it answers to Plan."""
        self.findable: dict[str, ModelRow] = {}
        """What may be found by its name."""
        self._news = threading.Condition()
        self.start()

    def start(self) -> None:
        self._over = False
        self._server = grpc.server(ThreadPoolExecutor(16))
        add_ControlServicer_to_server(self, self._server)
        assert self._server.add_insecure_port(self.address), "the socket is taken"
        self._server.start()

    def stop(self) -> None:
        with self._news:
            self._over = True
            self._news.notify_all()
        assert self._server.stop(grace=0).wait(DEADLINE), "the owner's server did not stop"

    def set(self, model_id: str, state: ModelState, **more: Any) -> int:
        """Changes one row; the number of the table that says so."""
        with self._news:
            self.rows[model_id] = replace(self.rows[model_id], state=state, **more)
            self.version += 1
            self._news.notify_all()
            return self.version

    def wait_for(self, condition: Callable[[Report], bool], what: str) -> Report:
        """The first report from now on, or the last one so far, of which this is true."""
        with self._news:
            begin = max(len(self.reports) - 1, 0)

            def found() -> Report | None:
                return next((report for report in self.reports[begin:] if condition(report)), None)

            assert self._news.wait_for(found, DEADLINE), f"never reported: {what}; last: {self.reports[-1:]}"
            report = found()
            assert report
            return report

    def wait_for_demand(self, model_id: str, **figures: Any) -> Report:
        def told(report: Report) -> bool:
            demand = demand_of(report, model_id)
            return all(getattr(demand, name) == value for name, value in figures.items())

        return self.wait_for(told, f"{figures} of {model_id}")

    def wait_seen(self, version: int) -> Report:
        return self.wait_for(lambda report: report.seen >= version, f"table {version} is in force")

    def Attend(self, reports: Iterator[pb.Report], context: grpc.ServicerContext) -> Iterator[pb.Table]:
        threading.Thread(target=self._read, args=(reports,), daemon=True).start()
        sent = -1
        while not self._over and context.is_active():
            with self._news:
                if self.version == sent:
                    self._news.wait(_LOOK_SECONDS)
                    continue
                sent, table = self.version, Table(self.version, tuple(self.rows.values()), self.pulls)
            yield table_to_wire(table)
        context.abort(grpc.StatusCode.UNAVAILABLE, "the owner is stopping")

    def _read(self, reports: Iterator[pb.Report]) -> None:
        try:
            for message in reports:
                with self._news:
                    self.reports.append(report_from_wire(message))
                    self._news.notify_all()
        except grpc.RpcError:
            pass  # the front end has gone

    def Find(self, request: pb.FindRequest, context: grpc.ServicerContext) -> pb.FindReply:
        with self._news:
            self._take(request, context)
            if request.name not in self.findable:
                context.abort(grpc.StatusCode.NOT_FOUND, f"there is no {request.name} here; the nearest is acme/stored")
            row = self.findable[request.name]
            self.rows[row.id] = row
            self.version += 1
            self._news.notify_all()
        return pb.FindReply(id=row.id)

    def Load(self, request: pb.LoadRequest, context: grpc.ServicerContext) -> pb.LoadReply:
        with self._news:
            self._take(request, context)
            self.set(request.name, ModelState.LOADING)
        return pb.LoadReply(id=request.name, told="it is being loaded")

    def Unload(self, request: pb.UnloadRequest, context: grpc.ServicerContext) -> pb.UnloadReply:
        with self._news:
            self._take(request, context)
            self.set(request.name, ModelState.DRAINING)
        return pb.UnloadReply(id=request.name, told="it goes with its last request")

    def Pull(self, request: pb.PullRequest, context: grpc.ServicerContext) -> pb.PullReply:
        with self._news:
            self._take(request, context)
            self.show_pull(PullRow(request.name, "downloading", started_at=STARTED))
        return pb.PullReply(told="it is being pulled", started_at=STARTED)

    def show_pull(self, row: PullRow) -> None:
        with self._news:
            self.pulls = (*(each for each in self.pulls if each.name != row.name), row)
            self.version += 1
            self._news.notify_all()

    def Plan(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> pb.PlanReply:
        self._take(request, context)
        return pb.PlanReply(plans=self.plans)

    def _take(self, request: Any, context: grpc.ServicerContext) -> None:
        """Whoever changes the table for it keeps the lock until that is done: a test that was waiting for the request
        changes the table behind it, and never before.
        """
        with self._news:
            self.asked.append(request)
            self._news.notify_all()
        if self.refusal:
            refusal, self.refusal = self.refusal, None
            context.abort(*refusal)

    def wait_asked(self, number: int = 1) -> Any:
        with self._news:
            assert self._news.wait_for(lambda: len(self.asked) >= number, DEADLINE), "nothing was asked for"
            return self.asked[-1]


def demand_of(report: Report, model_id: str) -> Demand:
    return next((demand for demand in report.demands if demand.id == model_id), Demand(model_id))
