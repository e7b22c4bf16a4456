"""What every test gets: fixture plugins, Hypothesis profiles and a place for its examples."""

import os

import hypothesis
from hypothesis.configuration import set_hypothesis_home_dir

pytest_plugins = ["tests.fix_postgres", "tests.fix_server"]

set_hypothesis_home_dir(".cache/hypothesis")
# No deadline: how long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("default", deadline=None)
# `HYPOTHESIS_PROFILE=long make test` looks further; CI prints what is needed to repeat a failure.
hypothesis.settings.register_profile("long", deadline=None, max_examples=2_000)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
)
