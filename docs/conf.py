"""The documentation as a site: ``make docs``.

The pages lie where GitHub shows them, and link to one another and to files of the repository by
relative paths. So the source of the site is the whole repository, of which it takes the Markdown.
"""

from __future__ import annotations

project = "torch_distinput"
author = "the torch_distinput authors"
extensions = ["myst_parser", "sphinx_design", "sphinx_copybutton"]
root_doc = "docs/site/home"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**.md",
    "torch_distinput/plan/progress/README.md",
]
exclude_patterns = [".venv*/**", "build/**", "**/node_modules/**"]

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4  # a link to a heading says what GitHub would

html_theme = "furo"
html_title = "torch_distinput"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
templates_path = ["site/templates"]
html_additional_pages = {"index": "to_home.html"}  # the address of the site itself
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5394", "color-brand-content": "#0969da"},
    "dark_css_variables": {"color-brand-primary": "#58a6ff", "color-brand-content": "#58a6ff"},
}
copybutton_exclude = ".linenos, .gp, .go"
linkcheck_timeout = 20
linkcheck_anchors = False
