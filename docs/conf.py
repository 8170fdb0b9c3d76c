"""Build the site from the pages in docs/: `sphinx-build -W docs build/site`. With -W a broken link or a lost page is an error."""

from __future__ import annotations

from sphinx.application import Sphinx

project = "vgrpo"
extensions = ["myst_parser"]
html_theme = "furo"
smartquotes = False  # a page says the same here and on GitHub
html_title = "vgrpo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
highlight_language = "text"  # of blocks that name no language
myst_heading_anchors = 4  # links to headings, as GitHub makes them
nitpicky = True
suppress_warnings = ["myst.header"]  # a heading may skip a level

NAVIGATION = {
    "Start": ["start", "words", "glyphs"],
    "Use": ["cli", "report", "use", "track", "compare", "scale", "ranks", "serve", "performance"],
    "Recipes and reference": [
        "recipes",
        "recipe",
        "options",
        "backbones",
        "families",
        "samplers",
        "prompts",
        "rewards",
        "rewards-clip",
        "rewards-judges",
        "rewards-geneval",
        "compose",
        "objectives",
    ],
    "Extend": ["authors", "plugins"],
    "Method and evidence": ["method", "benchmark", "reproduce", "comparison"],
    "Help": ["troubleshooting", "offline"],
}


def _tree(part: str, pages: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {part}", "", *pages, "```", ""])


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the navigation to the start page: in the file itself, GitHub would show it as code."""
    if page == "index":
        source[0] += "".join(_tree(part, pages) for part, pages in NAVIGATION.items())


def setup(app: Sphinx) -> None:
    """Let Sphinx call what is defined here."""
    app.connect("source-read", add_navigation)
