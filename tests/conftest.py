from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["tests.support.failure_logs"]

# Machines that run tests are busy: how long an example takes says nothing. Examples are the same in every run.
settings.register_profile("chorus", deadline=None, derandomize=True)
settings.load_profile("chorus")
