"""What all routes share: the settings, the models that are served, and the lifetimes of requests."""

from __future__ import annotations

from collections.abc import Sequence

from chorus.api.errors import ApiError
from chorus.api.served import Served
from chorus.api.server.lifetime import Lifetimes
from chorus.config.front_end import ApiSettings

DEFAULT = "default_model"
"""A name of the first model, whatever that is."""


class Service:
    def __init__(self, settings: ApiSettings, models: Sequence[Served]) -> None:
        self.settings = settings
        self.models = models
        self.lifetimes = Lifetimes(settings.limits.request_timeout_seconds)

    @property
    def default(self) -> Served:
        return self.models[0]

    def find(self, name: str | None) -> Served:
        """The model that a request means; raises ApiError where there is none of this name."""
        if name is None or name == DEFAULT:
            return self.default
        for served in self.models:
            if name in served.settings.names:
                return served
        raise ApiError(
            404,
            f"The model {name!r} is not served here; {self.default.settings.id!r} is.",
            param="model",
            code="model_not_found",
        )

    async def close(self) -> None:
        for served in self.models:
            await served.client.close()
