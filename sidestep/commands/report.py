"""`sidestep report` and `sidestep export`: what a run gives to those who have no Sidestep at hand."""

from pathlib import Path

from sidestep.commands.console import say


def report(folder: Path) -> int:
    """Write the HTML report into the run's folder."""
    from sidestep.report.html import write_report

    say(f"the report is in {write_report(folder)}")
    return 0


def export(folder: Path, file: Path) -> int:
    """Write the run's policy as a NumPy file."""
    from sidestep.export import export_numpy

    say(f"the policy is in {export_numpy(folder, file)}")
    return 0
