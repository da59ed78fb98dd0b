"""What holds for all tests."""

import os

# Hundreds of processes are started here. Each would compile all of headrace again where this is set, as it often is
# in containers.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
