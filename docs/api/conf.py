"""How Sphinx makes the API reference: a page a package, from the docstrings of its modules.

``python -m sphinx -W --keep-going -b html docs/api build/api`` builds it. Sphinx's autosummary
writes the pages by ``templates/package.rst``, into ``packages`` beside this file.
"""

import ast
import pkgutil
import sys
from importlib.metadata import version as version_of
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

# Commands are told by `fxpartition --help`; importing a `__main__` runs it.
LEFT_OUT = ("commands", "__main__")


def contents(package: str) -> dict[str, dict[str, list[str]]]:
    """Say what is on the page of a package, and of each one below, by full name.

    Returns
    -------
    dict
        By package: the ``packages`` and ``modules`` directly in it, and ``exports``: what its
        ``__init__`` offers, under the name of the module that defines it.
    """
    init = ROOT.joinpath(*package.split("."), "__init__.py")
    own: dict[str, list[str]] = {"packages": [], "modules": [], "exports": []}
    for block in ast.parse(init.read_text(encoding="utf-8")).body:
        for statement in block.body if isinstance(block, ast.If) else ():
            if isinstance(statement, ast.ImportFrom):
                own["exports"] += [f"{statement.module}.{alias.name}" for alias in statement.names]
    pages = {package: own}
    for found in pkgutil.iter_modules([str(init.parent)]):
        name = f"{package}.{found.name}"
        if found.name not in LEFT_OUT:
            own["packages" if found.ispkg else "modules"].append(name)
            pages |= contents(name) if found.ispkg else {}
    return pages


def follow_export(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement
) -> nodes.reference | None:
    """Lead ``fx_bridge.split_by_plan``, or a method of such a name, to where it is defined."""
    package, name, member = f"{node['reftarget']}..".split(".")[:3]
    home = HOMES.get(f"{package}.{name}")
    if home is None or node["refdomain"] != "py":
        return None
    # One package may pass on what another one passes on.
    target = f"{HOMES.get(home, home)}.{member}".removesuffix(".")
    return env.domains.python_domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], target, node, shown
    )


def setup(app: Sphinx) -> None:
    """Let Sphinx ask where what it does not know is defined."""
    app.connect("missing-reference", follow_export)


project = "fxpartition"
release = version_of("fxpartition")
extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
templates_path = ["templates"]
exclude_patterns = ["templates"]
html_theme = "alabaster"
html_theme_options = {"page_width": "75em", "sidebar_width": "18em", "fixed_sidebar": True}
html_copy_source = False
html_show_sourcelink = False
maximum_signature_line_length = 90
add_module_names = False
default_role = "code"

PAGES = contents("solver") | contents("fx_bridge") | contents("experiments")
HOMES = {
    f"{package}.{name.rpartition('.')[2]}": name
    for package, page in PAGES.items()
    for name in page["exports"]
}

autosummary_context = {"pages": PAGES}
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_use_type_comments = False
napoleon_google_docstring = False
# Signatures link to types; names of parameters and attributes are no links.
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]

# A role of a docstring leads to something of this project, or is text. Annotations name classes of
# others too.
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*"), ("py:obj", r"typing\..*"), ("py:exc", "queue.Empty")]
