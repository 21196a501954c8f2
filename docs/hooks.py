"""What the site is made of beside Markdown: notebooks, the list of every option, and files of the repository.

Pages link to files of the repository as they do on its own pages (`../benchmarks/results/exact.md`); here these files
become part of the site, below `repository/`.
"""

import json
import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from sidestep.cli.arguments import arguments_of
from sidestep.cli.commands import GROUPS, name_of

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#]+)((?:#[^)]*)?)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the list of options, notebooks as pages, and what pages link to outside of docs/."""
    pages = [file for file in files if file.src_uri.endswith(".md")]
    files.append(File.generated(config, "reference/options.md", content=options_page()))
    for file in [one for one in files if one.src_uri.endswith(".ipynb")]:
        files.remove(file)
        text = notebook_page(json.loads(Path(file.abs_src_path).read_text(encoding="utf-8")))
        files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=text))
    linked = {target for page in pages for target in outside(page.src_uri, Path(page.abs_src_path).read_text("utf-8"))}
    for target in sorted(linked):
        files.append(_repository_file(target, config))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation names notebooks by their own names."""
    config.nav = json.loads(json.dumps(config.nav).replace(".ipynb", ".md"))
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = posixpath.dirname(page.file.src_uri)
    return LINK.sub(lambda link: _moved(link, here), markdown)


def _moved(link: re.Match[str], here: str) -> str:
    words, target, part = link.groups()
    if target.endswith(".ipynb"):
        return f"{words}({target.replace('.ipynb', '.md')}{part})"
    place = posixpath.normpath(posixpath.join("docs", here, target))
    if "://" in target or (place.startswith(("docs/", "docs")) and not place.startswith("docs/results/")):
        return link.group()
    if here.startswith("repository"):
        place = posixpath.normpath(posixpath.join(here.removeprefix("repository").lstrip("/"), target))
    if not (ROOT / place).is_file() or here.startswith("repository"):
        return words  # of a page that was made for the repository: its links lead nowhere here
    return f"{words}({os.path.relpath(f'repository/{place}', here or '.')}{part})"


def outside(page: str, text: str) -> set[str]:
    """The files of the repository, outside of docs/ or not part of the site, that a page links to."""
    folder = posixpath.join("docs", posixpath.dirname(page))
    places = [posixpath.normpath(posixpath.join(folder, link.group(2))) for link in LINK.finditer(text)]
    kept = [place for place in places if not place.startswith("docs/") or place.startswith("docs/results/")]
    return {place for place in kept if (ROOT / place).is_file()}


def _repository_file(place: str, config: MkDocsConfig) -> File:
    """A page stays one; code and data are shown as they are."""
    return File.generated(config, f"repository/{place}", abs_src_path=str(ROOT / place))


def options_page() -> str:
    """Every command and every option, from the commands themselves."""
    parts = ["# Every option", "Generated from the commands. `sidestep COMMAND --help` shows the same."]
    for heading, commands in GROUPS.items():
        parts.append(f"## {heading[:1].upper()}{heading[1:]}")
        for command in commands:
            parts += [f"### sidestep {name_of(command)}", (command.__doc__ or "").partition("\n")[0]]
            rows = [
                f"| `{one.metavar or one.flag}` | {_cell(one.help)}{_default(one.default)} |"
                for one in arguments_of(command)
            ]
            parts.append("\n".join(["| | what it does |", "|---|---|", *rows]) if rows else "It takes no options.")
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _default(default: object) -> str:
    shown = isinstance(default, str | int | float | Path) and default is not False and default != ""
    return f" (default: {default})" if shown else ""


def notebook_page(notebook: dict) -> str:
    """A notebook's words and code, without what running it printed: `tests/test_documents.py` runs it."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts)
