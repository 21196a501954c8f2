"""The README as the package index shows it: there, links into this repository and its pictures would lead nowhere."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

COMMENT = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)
PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?://)[^)]*\)\n+", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)]*\)")


class Readme(MetadataHookInterface):
    """Without the comments for our tests and without pictures; a link to a file becomes its words."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = LINK.sub(r"\1", PICTURE.sub("", COMMENT.sub("", text)))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
