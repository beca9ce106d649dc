"""What all routes share: the settings, the models that are served, and the lifetimes of requests."""

from __future__ import annotations

from chorus.api.served import Served
from chorus.api.server.lifetime import Lifetimes
from chorus.config.front_end import ApiSettings
from chorus.serving.directory import Directory, Model
from chorus.serving.owner import Owner


class Service:
    def __init__(self, settings: ApiSettings, directory: Directory[Served]) -> None:
        self.settings = settings
        self.directory = directory
        self.owner = Owner(settings.control_address, directory) if settings.control_address else None
        """Of all models; None where those of the settings are all there will be, and each has its engine."""
        self.lifetimes = Lifetimes(settings.limits.request_timeout_seconds)

    @property
    def default(self) -> Model[Served]:
        return self.directory.default

    def find(self, name: str | None) -> Model[Served]:
        """The model that a request means; raises UnknownModel where there is none of this name."""
        return self.directory.find(name)

    async def look_for(self, name: str | None) -> Model[Served]:
        """The same, where its owner may have one that nobody has asked for so far."""
        if self.settings.any_model and self.owner and not self.directory.knows(name):
            await self.owner.find(name or "")
        return self.directory.find(name)

    def start(self) -> None:
        if self.owner:
            self.owner.start()

    async def close(self) -> None:
        if self.owner:
            await self.owner.close()
        await self.directory.close()
