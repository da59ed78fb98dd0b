"""``python -m headrace.cli``."""

import sys

from headrace.cli.main import main

sys.exit(main())
