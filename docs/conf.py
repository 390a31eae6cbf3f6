"""The site: pages of `docs/` as executed notebooks, and the reference from docstrings (`make site`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "dualmech"
author = "The dualmech developers"
project_copyright = author
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "myst_nb",
    "page_notebooks",
    "reference_pages",
    "mathml",
    "dragged",  # by JSXGraph 1.13.3 from npm (MIT or LGPL), in _static/jsxgraph with its licence
]
root_doc = "index"
templates_path = [str(Path(__file__).parent / "_templates")]
default_role = "py:obj"  # a name in single backticks is a link where the reference has it, and code elsewhere

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # nothing is fetched when a page is opened

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings name types in words
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_param = False  # types are words, which are not to be taken for names
napoleon_use_rtype = False

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "dualmech"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "notebook.html",
        "sidebar/scroll-end.html",
    ]
}
