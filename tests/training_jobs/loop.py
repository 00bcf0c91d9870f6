"""Steps without torch: `with flightwatch.step():` marks them."""

from __future__ import annotations

import functools
import operator
import sys

import flightwatch


def main() -> None:
    for number in range(4):
        with flightwatch.step(
            tokens=10.0, work={"rows": 2.0}, loss=functools.partial(operator.truediv, 1.0, number + 1)
        ):
            sum(range(1000))
    assert "torch" not in sys.modules


if __name__ == "__main__":
    main()
