"""`sidestep report` and `sidestep export`: what a run gives to those who have no Sidestep at hand."""

from pathlib import Path

from sidestep.cli.console import say
from sidestep.runs.folder import AGAIN


def report(folder: Path, trust: bool) -> int:
    """Write the HTML report into the run's folder."""
    from sidestep.report.folder import Folder
    from sidestep.report.html import write_report

    with Folder(folder).run.held(AGAIN):
        file = write_report(folder, trust)
    say(f"the report is in {file}")
    return 0


def export(folder: Path, file: Path, trust: bool) -> int:
    """Write the run's policy as a NumPy file."""
    from sidestep.deploy.export import export_numpy

    say(f"the policy is in {export_numpy(folder, file, trust)}")
    return 0
