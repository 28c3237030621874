"""What the interventions of ``el data build`` cost, against encoding the PNG that each of them is written to.

    python benchmarks/operators.py [--side 448] [--evidence 120] [--repeats 20]

Prints one JSON object: milliseconds, medians of the repeats, of one thread. Times are of the machine that runs it; what
carries over is the ratio. The image is a smooth one with fine noise, as a photo is; the evidence is a square in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from explicit_learning.data.build.opencv import configured_cv2  # noqa: E402 - the checkout, installed or not
from explicit_learning.data.build.operators import remove  # noqa: E402 - same
from explicit_learning.data.build.options import Operator, OperatorChoice  # noqa: E402 - same
from explicit_learning.data.build.regions import control_regions  # noqa: E402 - same
from explicit_learning.data.build.views import CONTROL_REACH, ViewInput, make_views  # noqa: E402 - same

if TYPE_CHECKING:
    from collections.abc import Callable

PNG_LEVEL = 3


def photo(side: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return an image of smooth gradients and fine noise; shape (side, side, 3)."""
    y, x = np.mgrid[:side, :side] / side
    smooth = np.stack([200 * x, 120 + 100 * np.sin(7 * y), 60 + 150 * x * y], axis=-1)
    noise = np.random.default_rng(0).integers(-4, 5, size=(side, side, 3))
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Return how long a call takes, the median of the repeats."""
    call()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return round(1000 * statistics.median(taken), 2)


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=448, help="side of the image, in pixels")
    parser.add_argument("--evidence", type=int, default=120, help="side of the evidence, in pixels")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    pixels = photo(args.side)
    evidence = np.zeros(pixels.shape[:2], dtype=np.bool_)
    corner = args.side // 5
    evidence[corner : corner + args.evidence, corner : corner + args.evidence] = True
    cv2 = configured_cv2()
    png = milliseconds(lambda: cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, PNG_LEVEL]), args.repeats)
    operators = {
        operator.value: milliseconds(lambda operator=operator: remove(pixels, evidence, operator), args.repeats)
        for operator in Operator
    }
    region = milliseconds(lambda: next(control_regions(evidence, reach=CONTROL_REACH, key=b""), None), args.repeats)
    item = ViewInput(item_id="item", images=(pixels,), evidence=(evidence,))
    views = {
        split: milliseconds(
            lambda split=split: make_views(item, split=split, seed=0, operators=OperatorChoice()), args.repeats
        )
        for split in ("train", "evaluation")
    }
    report = {
        "png": png,
        "operators": operators,
        "operators_over_png": {name: round(taken / png, 2) for name, taken in operators.items()},
        "control_region": region,
        "views_of_an_item": views,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
