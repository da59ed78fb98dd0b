"""What holds for all tests."""

import os

from hypothesis import settings

# Hundreds of processes are started here. Each would compile all of headrace again where this is set, as it often is
# in containers.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What tests run is no run that anybody wants to hear about; those of records say otherwise.
os.environ["HEADRACE_RECORD"] = "0"

# How long an example takes is a matter of what else the machine does.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")
