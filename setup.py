"""The packages of the wheel (`make wheel`); all else about it stands in pyproject.toml.

The schemas lie beside the package, where readers and the image find them. Into the wheel they go as data of the package
`explicit_learning.schemas`; `explicit_learning/files/resources.py` finds both. A table in pyproject.toml cannot say
this: there, packages are either found or listed.
"""

from __future__ import annotations

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["explicit_learning", "explicit_learning.*"]), "explicit_learning.schemas"],
    package_dir={"explicit_learning.schemas": "schemas"},
    package_data={
        "explicit_learning.schemas": ["*.schema.json"],
        **{f"explicit_learning.report.{name}": ["*.jinja"] for name in ("compare", "page", "run", "sheet")},
    },
    include_package_data=False,
)
