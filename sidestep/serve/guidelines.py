"""The user's guidelines: Markdown to HTML that cannot do anything but be read."""

from pathlib import Path

from markdown_it import MarkdownIt

from sidestep.core.errors import InputError
from sidestep.runtime.files import read_bytes

LONGEST = 200_000  # bytes


def guidelines_html(file: Path) -> str:
    """The file as HTML."""
    content = read_bytes(file)
    if len(content) > LONGEST:
        raise InputError(f"guidelines have at most {LONGEST:,} bytes, not {len(content):,}", place=str(file))
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"expected text in UTF-8, and byte {error.start} is none", place=str(file)) from None
    return markdown_html(text)


def markdown_html(text: str) -> str:
    """html=False escapes all HTML, and only http, https and mailto links become links; pictures stay text."""
    reader = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable("table").disable("image")
    setattr(reader, "validateLink", _leads_out)  # noqa: B010  # how markdown-it is told; mypy knows it as a method
    reader.add_render_rule("link_open", _outward)
    return str(reader.render(text))


def _leads_out(url: str) -> bool:
    return url.lower().startswith(("http://", "https://", "mailto:"))


def _outward(self, tokens, index, options, env):  # markdown-it's own signature
    """Links open elsewhere and do not say where they come from."""
    tokens[index].attrSet("rel", "noopener noreferrer")
    tokens[index].attrSet("target", "_blank")
    return self.renderToken(tokens, index, options, env)
