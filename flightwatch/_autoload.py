"""What torch calls at the end of `import torch` (entry-point group `torch.backends`, torch >= 2.5).

A target that fails makes `import torch` fail for the user, so this file uses the standard library alone,
does nothing unless FLIGHTWATCH=1, and lets no exception out. Python >= 3.8 syntax.
"""

import os
import sys


def autoload() -> None:
    """Attach the training probe when FLIGHTWATCH=1, or when `flightwatch.attach` was called before torch came."""
    if os.environ.get("FLIGHTWATCH") != "1" and "flightwatch.collectors.training.attaching" not in sys.modules:
        return
    try:
        from flightwatch.collectors.training.attaching import attach_at_import

        attach_at_import()
    except Exception as error:  # torch must be importable whatever is wrong here.
        try:
            os.write(2, ("flightwatch: the probe is off: " + repr(error) + "\n").encode("utf-8", "replace"))
        except OSError:
            return
