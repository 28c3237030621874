"""Pages from templates: one file, whole or not at all, in which every text is escaped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.atomic import new_file
from explicit_learning.files.os_errors import write_fault
from explicit_learning.gates.output import place_faults
from explicit_learning.report.plots.colours import THEMED
from explicit_learning.rundir import layout

__all__ = ["require_apart", "require_page", "require_plots", "write_page"]

FRAME = Path(__file__).with_name("page.html.jinja")
OUTPUT = Context(gate="output", exit_code=ExitCode.OUTPUT)
USAGE = Context(gate="usage", exit_code=ExitCode.USAGE)


def require_page(path: Path, *, option: str = "-o") -> None:
    """Refuse a file that cannot become a page, before anything is read. An earlier page may be replaced.

    Args:
        path: The file to write.
        option: The option that names it.

    Raises:
        Refusal: If its name does not end in .html, if a folder is there, if nothing can be written beside it, or if it
            would lie in a run directory, whose files are counted when it is verified.
    """
    if path.suffix.lower() != ".html":
        fix = "end the name in .html"
        raise USAGE.refusal(pointer=option, found=found_text(path.name), expected="a name in .html", fix=fix)
    at = OUTPUT.at(path)
    if path.is_dir():
        fix = f"choose another name ({option})"
        raise at.refusal(found="a folder", expected="a file, or nothing", fix=fix)
    _require_outside_runs(path.parent, option=option)
    if not path.parent.is_dir():
        fix = f"make the folder first (mkdir -p {path.parent}), or choose another place ({option})"
        raise at.refusal(found="a place in a folder that does not exist", expected="a place in a folder", fix=fix)
    _require_writable(path.parent, option=option)


def require_plots(folder: Path, *, option: str = "--plots") -> None:
    """Refuse a folder that plots cannot be written to, before anything is read or written.

    Args:
        folder: The folder; it may be missing.
        option: The option that names it.

    Raises:
        Refusal: If a file is there, if it cannot be made or written to, or if it would lie in a run directory.
    """
    if folder.exists() and not folder.is_dir():
        fix = f"choose another folder for the plots ({option})"
        raise OUTPUT.at(folder).refusal(found="a file", expected="a folder, or nothing", fix=fix)
    _require_outside_runs(folder, option=option)
    _require_writable(folder, option=option)


def require_apart(page: Path, folder: Path) -> None:
    """Refuse a page and a folder of plots in one place: the page would be written, and then no plot.

    Raises:
        Refusal: If the folder is the page, or would lie below it.
    """
    if page.resolve() in (place := folder.resolve(), *place.parents):
        found, fix = f"the place of the page, {page}", "choose another folder for the plots (--plots)"
        raise OUTPUT.at(folder).refusal(found=found, expected="a folder apart from the page", fix=fix)


def _require_writable(folder: Path, *, option: str) -> None:
    if faults := place_faults(folder):
        raise Refusal([replace(fault, fix=fault.fix.replace("(--out)", f"({option})")) for fault in faults])


def _require_outside_runs(folder: Path, *, option: str) -> None:
    """Refuse a folder in a run directory: verification would find files that the run did not write.

    Args:
        folder: Where something is to be written; it may be missing.
        option: The option that names it.

    Raises:
        Refusal: If it is a run directory, or lies in one.
    """
    for parent in (folder.absolute().resolve(), *folder.absolute().resolve().parents):
        if (parent / layout.RUN_MANIFEST).is_file():
            raise OUTPUT.at(folder).refusal(
                found=f"a place in the run directory {parent}",
                expected="a place outside of run directories, whose files `el verify` counts",
                fix=f"choose another place ({option})",
            )


def write_page(path: Path, template: Path, *, title: str, **values: Any) -> int:  # noqa: ANN401 - what the template shows
    """Write a page, whole or not at all, and return its size in bytes.

    Args:
        path: The file, which `require_page` has let pass.
        template: A template that extends the frame, ``page.html.jinja``, by blocks ``style``, ``top`` and ``content``.
        title: The page's title.
        values: What the template shows. Texts are escaped; a part that is markup already is a `markupsafe.Markup`.

    Raises:
        Refusal: If the file cannot be written.
    """
    from jinja2 import DictLoader, Environment, StrictUndefined

    sources = {file.name: file.read_text(encoding="utf-8") for file in (FRAME, template)}
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=DictLoader(sources)
    )
    parts = environment.get_template(template.name).generate(
        title=title,
        light_colours=" ".join(f"{name}: {light};" for light, (name, _) in THEMED.items()),
        dark_colours=" ".join(f"{name}: {dark};" for name, dark in THEMED.values()),
        **values,
    )
    try:
        with new_file(path) as stream:
            stream.writelines(part.encode() for part in parts)
        return path.stat().st_size
    except OSError as error:
        raise Refusal(write_fault(error, path)) from None
