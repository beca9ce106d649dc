"""Whom to ask for what concerns the models themselves."""

from __future__ import annotations

from chorus.api.service import Service
from chorus.serving.errors import OwnerRefused
from chorus.serving.models.owner import Owner


def owner_of(service: Service) -> Owner:
    """Raises OwnerRefused where there is none."""
    if service.owner is None:
        raise OwnerRefused("what this server serves is loaded for as long as it runs")
    return service.owner
