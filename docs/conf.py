"""Settings of the documentation site: ``make docs`` builds it into build/docs, offline."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]
os.environ.setdefault("MPLBACKEND", "agg")

project = "cvrcore"
author = "cvrcore contributors"
copyright = author
with open(ROOT / "pyproject.toml", "rb") as file:
    _declared = tomllib.load(file)["project"]
if "version" in _declared:
    release = version = _declared["version"]
else:  # declared dynamic: the package knows it
    import cvrcore

    release = version = cvrcore.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "local_links",
    "mathml",
]
templates_path = ["_templates"]
exclude_patterns = ["_ext", "_templates", "gallery/*.ipynb", "**/.ipynb_checkpoints"]
default_role = "py:obj"

# Markdown and notebooks. Notebooks show what is stored in them: make notebooks runs them.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "off"

# The reference. Frameworks are not needed to read their adapters' docstrings.
autosummary_generate = True
autosummary_imported_members = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc shows the types of the docstring
autodoc_mock_imports = ["flwr", "nvflare", "pfl", "ray"]
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

# The gallery: short scripts that run while the site is built.
sphinx_gallery_conf = {
    "examples_dirs": [str(ROOT / "examples" / "gallery")],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"/plot_",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,  # its table would load scripts from elsewhere
    "min_reported_time": 10_000,
    "remove_config_comments": True,
    "matplotlib_animations": False,
    "image_srcset": ["2x"],
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# The look. Nothing is loaded from elsewhere; search reads its index by a script tag, which a
# browser allows for files. Summaries of results would be fetched, which it does not.
html_theme = "furo"
html_title = f"cvrcore {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False
html_math_renderer = "mathml"
html_last_updated_fmt = None
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {
        "color-brand-primary": "#0b5394",
        "color-brand-content": "#0b5394",
        "font-stack": "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
        "font-stack--monospace": "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8ab4f8",
        "color-brand-content": "#8ab4f8",
    },
}
pygments_style = "default"
pygments_dark_style = "monokai"
