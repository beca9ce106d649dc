"""What each rank shall hold of a model that was found: as its folder was made for, or as the settings lay it down."""

from __future__ import annotations

from dataclasses import replace

from chorus.config.file import ConfigError
from chorus.deploy.hostfile.serve import with_proportions
from chorus.deploy.preshard import with_own_division
from chorus.localai.errors import LoadFailed
from chorus.localai.plan import LoadPlan
from chorus.models import LocalModel, ModelError
from chorus.planning.plan import PlanError


def divided(plan: LoadPlan, model: LocalModel) -> LoadPlan:
    """Raises LoadFailed where the two contradict each other."""
    try:
        settings = with_own_division(with_proportions(plan.settings, model), model)
    except (ModelError, ConfigError, PlanError) as error:
        raise LoadFailed(str(error)) from None
    return replace(plan, settings=settings)
