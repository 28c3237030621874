"""The image's bill of materials (CycloneDX 1.6, JSON) on standard output: ``bill_of_materials.py ENVIRONMENT``.

Everything that could differ between two images of one lock has to be in it: the Python packages of the environment and
the packages of the system, each with its version and package URL. The last step of the build makes it from what is
installed. It holds no time and no random number of its own, so the same image has the same bill. Its hash is in the
image's record of itself, and from there in every run's provenance.

This program runs in the build's own tools (image.lock), not in the environment that it describes.
"""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from email.parser import HeaderParser
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

if TYPE_CHECKING:
    from collections.abc import Iterator

DPKG = Path("/var/lib/dpkg/status")
VERSION = SchemaVersion.V1_6


def python_packages(environment: Path) -> Iterator[Component]:
    """Yield the distributions installed in an environment."""
    for site in sorted(environment.glob("lib/python3.*/site-packages")):
        for found in distributions(path=[str(site)]):
            name = found.metadata["Name"].lower().replace("_", "-").replace(".", "-")
            yield _component(PackageURL("pypi", name=name, version=found.version))


def system_packages() -> Iterator[Component]:
    """Yield the packages that dpkg has installed."""
    release = platform.freedesktop_os_release()
    distribution, version = release["ID"], release["VERSION_ID"]
    for paragraph in DPKG.read_text().strip().split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if fields["Status"].split()[-1] == "installed":
            qualifiers = {
                "arch": fields["Architecture"],
                "distro": f"{distribution}-{version}",
            }
            yield _component(PackageURL("deb", distribution, fields["Package"], fields["Version"], qualifiers))


def _component(url: PackageURL) -> Component:
    text = url.to_string()
    return Component(type=ComponentType.LIBRARY, name=url.name, version=url.version, purl=url, bom_ref=text)


def bill(environment: Path, *, commit: str, lock: str, epoch: int) -> str:
    """Return the bill as JSON, checked against CycloneDX's own schema.

    Raises:
        ValueError: If it breaks that schema.
    """
    components = [*python_packages(environment), *system_packages()]
    subject = Component(type=ComponentType.CONTAINER, name="explicit-learning", version=commit, bom_ref="image")
    subject.properties.add(Property(name="explicit-learning:lock", value=lock))
    identity = "\n".join(sorted(str(component.bom_ref) for component in components))
    document = Bom(components=components, serial_number=uuid5(NAMESPACE_URL, f"{commit}\n{lock}\n{identity}"))
    document.metadata.component = subject
    document.metadata.timestamp = datetime.fromtimestamp(epoch, tz=UTC)
    document.register_dependency(subject, components)
    text = make_outputter(document, OutputFormat.JSON, VERSION).output_as_string(indent=1)
    if problem := JsonStrictValidator(VERSION).validate_str(text):
        raise ValueError(str(problem))
    return text


if __name__ == "__main__":
    settings = os.environ
    print(
        bill(
            Path(sys.argv[1]),
            commit=settings["CODE_COMMIT"],
            lock=settings["LOCK"],
            epoch=int(settings["SOURCE_DATE_EPOCH"]),
        )
    )
