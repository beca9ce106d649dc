"""What a front end knows of each model that it has served, loaded or not."""

from __future__ import annotations

from dataclasses import dataclass, field

from chorus.telemetry.metrics.answers import AnswerCounts
from chorus.telemetry.metrics.engines import EngineFigures


@dataclass
class ModelMetrics:
    answers: AnswerCounts = field(default_factory=AnswerCounts)
    engine: EngineFigures = field(default_factory=EngineFigures)


class Metrics:
    """Of one front end. A model is never forgotten: who unloads one has not undone what it answered."""

    def __init__(self) -> None:
        self.models: dict[str, ModelMetrics] = {}

    def of(self, model_id: str) -> ModelMetrics:
        return self.models.setdefault(model_id, ModelMetrics())
