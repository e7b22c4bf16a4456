"""What every test gets: fixture plugins, Hypothesis profiles and a place for its examples."""

import os
import signal

import hypothesis
from hypothesis.configuration import set_hypothesis_home_dir

pytest_plugins = ["tests.fix_etcd", "tests.fix_postgres", "tests.fix_server"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run in the background inherits this from its shell, and hands it on to the programs whose Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)

set_hypothesis_home_dir(".cache/hypothesis")
# No deadline: how long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("default", deadline=None)
# `HYPOTHESIS_PROFILE=long make test` looks further; CI prints what is needed to repeat a failure.
hypothesis.settings.register_profile("long", deadline=None, max_examples=2_000)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
)
