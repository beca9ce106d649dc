"""What is the same of all models of a server, wherever their ranks are: their settings, and a folder for each."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from pathlib import Path

from chorus.config.front_end import ModelSettings
from chorus.config.served import ModelConfig
from chorus.config.settings import Settings
from chorus.deploy.finding import expected
from chorus.deploy.front_end import settings_of
from chorus.models import LocalModel
from chorus.platform.process.lifeline import Lifeline


class Making(ABC):
    """The part of a `Maker` that does not depend on where its groups are."""

    def __init__(self, settings: Settings, lifeline: Lifeline, alone: bool) -> None:
        """`alone`: there is one model, and there will be no other."""
        self._settings = settings
        self._lifeline = lifeline
        self._alone = alone

    def folder(self, number: int) -> Path:
        """Of one model's processes; one that is alone has that of the server."""
        parent = self._lifeline.path.parent
        return parent if self._alone else parent / str(number)

    def expected(self, entry: ModelConfig, number: int) -> ModelSettings:
        return self._told(settings_of(self._settings, entry), expected(entry.source, self.folder(number)), number)

    def clear(self, number: int) -> None:
        if not self._alone:
            shutil.rmtree(self.folder(number), ignore_errors=True)

    @abstractmethod
    def _told(self, settings: Settings, model: LocalModel, number: int) -> ModelSettings:
        """What front ends are told of a model."""
