"""`sidestep models`. Light on purpose: no model is loaded."""

from sidestep.cli.commands import Models
from sidestep.cli.console import show_table
from sidestep.models.domains import all_domains


def list_models(asked: Models) -> int:
    rows = [((name, "bold"), domain.description, ", ".join(domain.options)) for name, domain in all_domains().items()]
    show_table(["name", "what it is", "options"], rows)
    return 0
