"""`sidestep report` and `sidestep export`: what a run gives to those who do not have Sidestep."""

from sidestep.cli.commands import Export, Report
from sidestep.cli.console import say
from sidestep.deploy.answers import load
from sidestep.report.folder import Folder
from sidestep.report.html import write_report
from sidestep.runs.folder import AGAIN


def report(asked: Report) -> int:
    """Write the HTML report into the run's folder."""
    with Folder(asked.folder).run.held(AGAIN):
        file = write_report(asked.folder, asked.trust)
    say(f"the report is in {file}")
    return 0


def export(asked: Export) -> int:
    """Write the policy of the run as a Python file or as ONNX."""
    say(f"the policy is in {load(asked.folder, asked.trust).export(asked.file)}")
    return 0
