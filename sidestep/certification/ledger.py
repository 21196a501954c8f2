"""A run's ledger of audits, audits.json: every audit is entered before its first rollout and stays there.

Who may try again in secret until an audit passes will get a false certificate sooner or later. So a further audit of a
run shares the error with all before it, whoever asked for them, and one that was begun is finished as it was begun: its
rollouts follow from its seed and number alone, and stopping it in the middle changes nothing.
"""

from sidestep.certification.records import Audit
from sidestep.core.errors import InputError
from sidestep.core.records import from_json, to_json
from sidestep.runs.folder import Run

FILE = "audits.json"


class Ledger:
    """The audits of one run, the oldest first."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def audits(self) -> tuple[Audit, ...]:
        if not (self.run.path / FILE).exists():
            return ()
        rows = self.run.read_json(FILE)
        if not isinstance(rows, list):
            raise InputError("expected a list of audits", place=self.place)
        audits = tuple(from_json(Audit, _renewed(row, number), self.place) for number, row in enumerate(rows, 1))
        for number, audit in enumerate(audits, 1):
            _check(audit, number, self.place)
        return audits

    @property
    def place(self) -> str:
        return str(self.run.path / FILE)

    @property
    def of_run(self) -> tuple[Audit, ...]:
        """Those that the run itself made, without those of `sidestep certify`."""
        return tuple(audit for audit in self.audits if audit.candidate is not None)

    @property
    def open(self) -> Audit | None:
        """The audit that was begun and is not decided."""
        audits = self.audits
        return audits[-1] if audits and audits[-1].status == "open" else None

    @property
    def next_number(self) -> int:
        return len(self.audits) + 1

    def begin(self, audit: Audit) -> None:
        self._write((*self.audits, audit))

    def update(self, audit: Audit) -> None:
        """Put what came of an audit in the place of its entry."""
        audits = list(self.audits)
        audits[audit.number - 1] = audit
        self._write(tuple(audits))

    def _write(self, audits: tuple[Audit, ...]) -> None:
        self.run.write_json(FILE, to_json(audits))


def _check(audit: Audit, number: int, place: str) -> None:
    """Refuse an entry that no audit writes: out of order, without a promise, or with counts that cannot be."""
    counts = (audit.rollouts, audit.labels, audit.candidate or 0)
    if audit.number != number or not 0.5 <= audit.promised < 1 or audit.most < 1 or min(counts) < 0:
        raise InputError(f"entry {number} is damaged; put the file back as it was", place=place)


def _renewed(row: object, number: int) -> object:
    """An entry of a run that an earlier version audited, in today's form."""
    if not isinstance(row, dict) or "evaluation" not in row:
        return row
    verdicts = row.get("constraints")
    certified = isinstance(verdicts, list) and all(isinstance(one, dict) and one.get("certified") for one in verdicts)
    figures = {"returns": row.get("return"), "side_effects": row.get("side_effects"), "penalty": row.get("penalty")}
    return {
        "number": number,
        "method": "fixed",
        "labelled_by": "",
        "policy": "",
        "seed": 0,
        "most": row.get("rollouts"),
        "promised": 0.95,
        "candidate": row.get("candidate", 0),
        "status": "certified" if certified else "refused",
        "constraints": row.get("constraints"),
        "rollouts": row.get("rollouts"),
        "labels": row.get("audit_labels", row.get("rollouts")),
        "figures": figures,
    }
