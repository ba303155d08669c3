# SPDX-License-Identifier: Apache-2.0
"""Sphinx' settings. In: the pages as scripts/docs.py lays them out. Out: HTML that needs no server: search works from a file."""

from pygments.lexers.special import TextLexer

project = "KTSN"
copyright = "KTSN's authors, Apache-2.0"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = []
# Links to headings of a page, as GitHub makes them.
myst_heading_anchors = 4
# Fences that are drawings and transcripts, and languages that the highlighter does not know well enough.
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "alabaster"
html_title = "KTSN"
html_theme_options = {
    "description": "Deterministic networking for software that does not run on bare metal",
    "fixed_sidebar": True,
    "page_width": "78rem",
    "sidebar_width": "17rem",
    "sidebar_collapse": False,
    "show_powered_by": False,
    "font_family": "system-ui, sans-serif",
    "head_font_family": "system-ui, sans-serif",
}
html_sidebars = {"**": ["about.html", "searchbox.html", "navigation.html"]}
html_show_sourcelink = False
html_copy_source = False
# The same octets whenever it is built.
html_last_updated_fmt = None
html_use_index = False


def setup(app):
    # Fences that the project's own checks read.
    for name in ("edges", "tiers", "laboratory", "never"):
        app.add_lexer(name, TextLexer)
