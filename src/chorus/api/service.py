"""What all routes share: the settings, the models that are served, the lifetimes of requests and their list."""

from __future__ import annotations

from chorus.api.errors import ApiError
from chorus.api.journal import EventWatch
from chorus.api.nodes import NodeNames
from chorus.api.served import Served
from chorus.api.server.gate import Record
from chorus.api.server.lifetime import Lifetimes
from chorus.api.server.listing import Listing
from chorus.api.tracing import RequestTraces, open_traces
from chorus.config.front_end import ApiSettings
from chorus.serving.models.directory import Directory, Model
from chorus.serving.models.owner import Owner
from chorus.telemetry.metrics.models import Metrics


class Service:
    def __init__(self, settings: ApiSettings, directory: Directory[Served], metrics: Metrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self.directory = directory
        self.owner = Owner(settings.control_address, directory) if settings.control_address else None
        """Of all models; None where those of the settings are all there will be, and each has its engine."""
        self.lifetimes = Lifetimes(settings.limits.request_timeout_seconds)
        self.listing = Listing()
        self.event_watch = EventWatch(settings.events)
        self.node_names = NodeNames()
        self.traces: RequestTraces | None = open_traces(settings, self.node_names)

    @property
    def default(self) -> Model[Served]:
        return self.directory.default

    def find(self, name: str | None) -> Model[Served]:
        """The model that a request means; raises UnknownModel where there is none of this name."""
        return self.directory.find(name)

    def find_for(self, name: str | None, record: Record) -> Model[Served]:
        """The same for whoever asks. Whether there is a model that a key is not for cannot be told from the answer, as
        at OpenAI.
        """
        if record.models is not None and not (self.directory.knows(name) and self._may_use(record, self.find(name))):
            asked = "The default model" if name is None else f"The model {name!r}"
            who = f"the key {record.owner!r}" if record.owner else "whoever shows no key"
            told = f"{asked} is not served to {who}; GET /v1/models lists what is."
            raise ApiError(404, told, param="model", code="model_not_found")
        return self.find(name)

    def find_health(self, name: str | None, record: Record) -> Model[Served]:
        """The same for whoever asks how it is: of the default model everybody may, without a key too."""
        return self.default if name is None else self.find_for(name, record)

    async def look_for(self, name: str | None, record: Record) -> Model[Served]:
        """The same, where its owner may have one that nobody has asked for so far."""
        may_hear = record.models is None or record.may_use([name or ""])
        if self.settings.any_model and self.owner and may_hear and not self.directory.knows(name):
            await self.owner.find(name or "")
        return self.find_for(name, record)

    def allowed(self, record: Record) -> list[Model[Served]]:
        """All models that whoever asks may use, and hear of."""
        return [model for model in self.directory.models if self._may_use(record, model)]

    @staticmethod
    def _may_use(record: Record, model: Model[Served]) -> bool:
        return record.may_use(model.settings.names)

    def start(self) -> None:
        for model in self.directory.models:
            if model.front:
                model.front.client.watch()
        if self.owner:
            self.owner.start()

    async def close(self) -> None:
        if self.owner:
            await self.owner.close()
        await self.directory.close()
        if self.traces:
            await self.traces.close()
