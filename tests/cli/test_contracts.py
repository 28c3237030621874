"""Which tests `el contracts` runs."""

from __future__ import annotations

import re
import tomllib

from explicit_learning.cli.contracts import LEFT_OUT
from explicit_learning.files.resources import ROOT


def test_contracts_are_the_default_tests_less_those_that_need_a_checkout() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    by_default = options[options.index("-m") + 1]
    marks = {expression: set(re.findall(r"\w+", expression)) - {"not", "or"} for expression in (by_default, LEFT_OUT)}
    assert marks[LEFT_OUT] == marks[by_default] | {"checkout"}
    assert "slow" in marks[by_default]
