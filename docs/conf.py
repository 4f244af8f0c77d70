"""How Sphinx makes the site: the pages of this repository, and the library from its docstrings.

``python -m sphinx -W --keep-going -c docs -b html . build/site`` builds it from the root, so that
links between pages are the same there and in the repository. ``docs/README.md`` has what is in the
navigation, and in which order. Of every package Sphinx's autosummary writes a page, by
``api/templates/package.rst`` into ``api/packages``.
"""

import ast
import json
import pkgutil
import re
import shutil
import sys
from importlib.metadata import version as version_of
from pathlib import Path

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

# Commands are told by `fxpartition --help`; importing a `__main__` runs it.
LEFT_OUT = ("commands", "__main__")
_PUBLISHED = "experiments/workloads/published/README.md"


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


def add_navigation(app: Sphinx, page: str, text: list[str]) -> None:
    """Give the pages that list others their entries in the navigation, which are not shown there.

    The home page has the sections of ``docs/README.md``; an index below it has its own.
    """
    index = {
        "README": ROOT / "docs/README.md",
        "docs/algorithms/README": ROOT / "docs/algorithms/README.md",
    }.get(page)
    if index is None:
        return
    sections = re.split(r"(?m)^## ", index.read_text(encoding="utf-8"))[1:]
    entries = {
        # Not the links to pages of another index.
        section.partition("\n")[0]: re.findall(r"(?m)^\* \[.*?\]\((?!\.\.)(.*?)\):", section)
        for section in sections
    }
    if page == "README":
        others = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", _PUBLISHED)
        entries["Reference"] = ["README.md", "api/index.rst", *(f"../{name}" for name in others)]
    for caption, targets in entries.items():
        files = [(index.parent / target).resolve().relative_to(ROOT) for target in targets]
        paths = "\n".join(f"/{file.as_posix()}" for file in files)
        text[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{paths}\n```\n"


class NotebookParser(MystParser):
    """Reads notebooks as pages: text, code, and what it printed when they were saved."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Add the cells of a notebook to a document."""
        blocks: list[str] = []
        for cell in json.loads(inputstring)["cells"]:
            source = "".join(cell["source"])
            blocks.append(f"```python\n{source}\n```" if "outputs" in cell else source)
            for output in cell.get("outputs", ()):
                lines = output.get("text") or output["data"]["text/plain"]
                blocks.append(f"```text\n{''.join(lines)}\n```")
        super().parse("\n\n".join(blocks), document)


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Make the home page the one that servers show for a folder, too."""
    if error is None and app.builder.name == "html":
        shutil.copy(app.outdir / "README.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Let Sphinx ask where what it does not know is defined, and add the navigation."""
    app.connect("missing-reference", follow_export)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_index)
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)


project = "fxpartition"
release = version_of("fxpartition")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/**.md",
    "docs/notebooks/*.ipynb",
    "docs/api/**.rst",
    "benchmarks/README.md",
    _PUBLISHED,
]
templates_path = [str(ROOT / "docs/api/templates")]
exclude_patterns = ["docs/api/templates"]
html_theme = "furo"
html_title = "fxpartition"
html_copy_source = False
html_show_sourcelink = False
# As GitHub makes them.
myst_heading_anchors = 6
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
