"""A small finished campaign of a user's own model and rule, written by the product."""

import os
from pathlib import Path

from sidestep.cli import main

YARD = """
from sidestep.models.domains.driving.model import Driving

yard = Driving("S.@..\\n.....\\n..@.G", name="yard", horizon=20)

def slow(trajectory, model):
    return (trajectory.length > 12).astype(int) * 2

"""
SMALL = "--labels 40 --rounds 1 --members 1 --first-fit 20 --later-fit 10 --rollouts 200 --audits 1 --quiet"


def write_run(folder: Path, more: str = "") -> Path:
    """folder/run, made from folder/mine/yard.py; `more` is code at the end of that file."""
    (folder / "mine").mkdir()
    (folder / "mine/yard.py").write_text(YARD + more)
    before = os.getcwd()
    os.chdir(folder)
    try:
        command = ["plan", "mine/yard.py:yard", "--rule", "mine/yard.py:slow", "--out", "run", *SMALL.split()]
        assert main(command) in (0, 1)
    finally:
        os.chdir(before)
    return folder / "run"
