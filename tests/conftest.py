from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["tests.support.failure_logs"]

# Machines that run tests are busy: how long an example takes says nothing. Examples are the same in every run.
settings.register_profile("chorus", deadline=None, derandomize=True)
# For `make fuzz`: others in every run, from the seed that it is given.
settings.register_profile("long", deadline=None, max_examples=3000, database=None, print_blob=True)
settings.load_profile("chorus")
