"""Options from a file: TOML, or JSON such as the config.json of a run. Light on purpose: loads no JAX.

    model = "navigation"
    constraint = ["none>=0.95"]
    labels = 300
    seed = 3

    [planning]
    learning_rate = 1e-3

Names are those of the command line; tables are headings for the reader and mean nothing.
"""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

from sidestep.campaign.config import CampaignConfig
from sidestep.core.errors import InputError
from sidestep.core.options import options_of
from sidestep.core.records import checked
from sidestep.runs.records import RunConfig, read_config
from sidestep.runtime.files import read_bytes

LIVE = "the run's model or expert was a Python object, which a file cannot hold; go on in Python with sidestep.solve"


def read_options(file: Path) -> dict[str, object]:
    """The options in this file, by name."""
    if is_config(file):
        return _of_run(read_config(file), file)
    content_bytes = read_bytes(file)
    try:
        text = content_bytes.decode("utf-8")
        content = json.loads(text) if file.suffix.lower() == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not a file of options ({error}); expected TOML or JSON", place=str(file)) from None
    if not isinstance(content, dict):
        raise InputError("expected names and values", place=str(file))
    flat: dict[str, object] = {}
    for name, value in content.items():
        for key, one in value.items() if isinstance(value, dict) else [(name, value)]:
            if key in flat:
                raise InputError(f"'{key}' is given twice in the file", place=str(file))
            flat[key] = one
    return flat


def is_config(file: Path) -> bool:
    """Whether this is the config.json that a run wrote."""
    if file.suffix.lower() != ".json":
        return False
    try:
        content = json.loads(read_bytes(file))
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "format" in content


def _of_run(config: RunConfig, file: Path) -> dict[str, object]:
    """What was asked for in a run. The planner's settings are taken as a whole: see `cli/plan.py`."""
    if config.live:
        raise InputError(LIVE, place=str(file))
    safety = file.with_name("safety.safetensors")
    asked: dict[str, object] = {
        "model": config.model,
        "constraint": list(config.constraints),
        "rule": config.rule,
        "people": config.people,
        "method": config.method,
        "seed": config.seed,
        "seeds": config.seeds if config.seeds > 1 else None,
    }
    if config.kind == "campaign":
        asked["categories"] = " < ".join(config.categories) if config.rule is None else None
        asked |= _changed(checked(CampaignConfig, config.settings, f"{file}, settings"), config.people)
    elif safety.is_file():
        asked["safety"] = str(safety)
    return {name: value for name, value in asked.items() if value is not None and value is not False and value != []}


def _changed(settings: CampaignConfig, people: bool) -> dict[str, object]:
    """The settings of a campaign that are not the usual ones; a run notes whether it asks for marks, asked or not."""
    usual = replace(CampaignConfig(), marks=people)
    return {
        name: value for name in options_of(CampaignConfig) if (value := getattr(settings, name)) != getattr(usual, name)
    }
