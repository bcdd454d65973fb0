"""How Sphinx builds the site: `make docs`, without a network."""

import json
import logging
import os
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["OMP_NUM_THREADS"] = "1"  # of this process and of notebooks: the matrices are small

import heedful
from making.commands import write_commands
from making.findings import write_findings
from making.rungs import write_rungs
from making.textbook import write_textbook

project = "heedful"
author = "the authors of heedful"
version = release = heedful.__version__
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["making", "generated/*.txt", "**.ipynb_checkpoints"]
nitpicky = True

# --- the theme ---

html_theme = "furo"
html_title = "heedful"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["generated/pages"]
(HERE / "generated" / "pages").mkdir(parents=True, exist_ok=True)  # Sphinx wants it early
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False
html_show_search_summary = False  # it fetches pages, which browsers refuse for files
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# --- Markdown and notebooks ---

myst_enable_extensions = ["attrs_inline", "colon_fence", "fieldlist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

# A notebook's kernel warns that others on this machine can read its output, and nbclient names it; pages need neither.
KERNEL = HERE / "generated" / "jupyter" / "kernels" / "python3"
KERNEL.mkdir(parents=True, exist_ok=True)
(KERNEL / "kernel.json").write_text(
    json.dumps(
        {
            "argv": [
                *(sys.executable, "-m", "ipykernel_launcher"),
                *("--log-level=ERROR", "-f", "{connection_file}"),
            ],
            "display_name": "Python 3",
            "language": "python",
        }
    )
)
os.environ["JUPYTER_PATH"] = str(KERNEL.parents[1])
logging.getLogger("traitlets").setLevel(logging.WARNING)

# --- docstrings ---

default_role = "code"  # docstrings write `names` as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
napoleon_use_rtype = False
napoleon_use_ivar = True  # fields have an entry each in the list of attributes, and none besides
napoleon_preprocess_types = False

# With a network (DOCS_ONLINE=1), names of other projects become links to their documentation. Without one, their lists
# of names cannot be had, because the packages do not carry them. A name that is not heedful's own is then plain text.
online = os.environ.get("DOCS_ONLINE") == "1"
intersphinx_mapping = (
    {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "transformers": ("https://huggingface.co/docs/transformers/main/en", None),
    }
    if online
    else {}
)
ANNOTATIONS_ALONE = "AttentionProblem|CallKind|Cell|HeadsView|M|Part|RotationFactors|SimulatedMesh|SourceText|T|View"
nitpick_ignore_regex = [
    ("py:.*", r"(?!heedful).*"),
    (
        "py:.*",
        rf"heedful\..*\.({ANNOTATIONS_ALONE})",
    ),  # aliases, variables and types that users do not make
]
suppress_warnings = [
    "ref.python"
]  # `Summary` is of a trace or of attention; the annotation links to either


def plain_docstring(app, what, name, object, options, lines):
    """Escape what reStructuredText reads as markup, and Markdown and plain text do not."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(``.*?``|`[^`]*`|\*\*[^*]+\*\*)", line)
            parts[::2] = [re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
            lines[i] = "".join(parts)


def write_pages(app):
    """Write the pages that are made of what the package says."""
    write_findings(HERE / "findings")
    write_commands(HERE / "reference" / "commands.md")
    write_rungs(HERE / "generated", HERE / "generated" / "pages" / "steps")
    write_textbook(HERE / "generated" / "textbook")
    copy_from_the_checkout()


def copy_from_the_checkout():
    """Copy the notebooks that run in seconds, and the documents beside the code, with links between them."""
    notebooks, project = HERE / "notebooks", HERE / "project"
    for folder in (notebooks, project):
        folder.mkdir(exist_ok=True)
    for name in ("first_attempt", "ladder"):
        shutil.copy(HERE.parent / "examples" / f"{name}.ipynb", notebooks)
    for name in ("CHANGELOG", "CONTRIBUTING", "DESIGN"):
        text = (HERE.parent / f"{name}.md").read_text(encoding="utf-8")
        linked = re.sub(r"\]\(([A-Z]+)\.md\)", lambda it: f"]({it[1].lower()}.md)", text)
        linked = linked.replace("](docs/", "](../")
        (project / f"{name.lower()}.md").write_text(linked, encoding="utf-8")


def setup(app):
    """Connect the functions above to Sphinx."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", plain_docstring, priority=400)  # before napoleon
