"""`python -m flightwatch.cli`, for processes that start another Flightwatch process."""

import sys

from flightwatch.cli import main

sys.exit(main())
