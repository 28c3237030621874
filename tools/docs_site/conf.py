"""How Sphinx makes the site. `build.py` puts the pages and this file into a folder, and makes warnings errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Explicit Learning"
author = "the authors of Explicit Learning"
extensions = ["myst_parser"]
exclude_patterns: list[str] = []
html_theme = "furo"
html_title = "Explicit Learning"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
# The search, like all else, works from a folder: its index is a script beside the pages.
html_theme_options = {"navigation_with_keys": True}
# Anchors are those that forges make, so that a link works in both.
myst_heading_anchors = 4
nitpicky = True


def setup(app: Sphinx) -> None:
    """Show diagrams as the text that they are: a renderer would have to come from a network."""
    app.add_lexer("mermaid", TextLexer)
