"""Prints the packages to install again, one after another, so that two builds have the same files.

Some packages install different files under one path, and the installer works in parallel: which of them stays would
differ from one build to the next. After this it is the file of the package that comes last by name.

usage: overwritten.py SITE-PACKAGES
"""

import csv
import os.path
import re
import sys
from pathlib import Path


def main() -> None:
    """Print one normalised name a line, in order."""
    owners: dict[str, dict[str, str]] = {}
    for record in Path(sys.argv[1]).glob("*.dist-info/RECORD"):
        package = re.sub(r"[-_.]+", "-", record.parent.name.partition("-")[0]).lower()
        with record.open(encoding="utf-8", newline="") as stream:
            for path, recorded, _size in csv.reader(stream):
                owners.setdefault(os.path.normpath(path), {})[package] = recorded
    print("\n".join(sorted({max(claims) for claims in owners.values() if len(set(claims.values())) > 1})))


if __name__ == "__main__":
    main()
