"""Callbacks that write figures elsewhere: TensorBoard, Weights & Biases, or what `figures_of` feeds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sidestep.certification.records import Audit, Result
from sidestep.core.errors import InputError
from sidestep.deploy.solve import Event
from sidestep.planning.rows import PlanRow
from sidestep.runs.records import Round

Figures = dict[str, float]


def figures_of(event: Event) -> tuple[int, Figures]:
    """A step to draw an event's figures at, and the figures by name; none for an event without a record.

    Tests of policies count epochs on from round to round, all else counts labels.
    """
    record = event.record
    found: dict[str, float | None]
    if isinstance(record, PlanRow):
        name = f"policy {record.seed_index}"
        found = {f"{name}/return": record.mean_return}
        found |= {f"{name}/cost {index}": cost for index, cost in enumerate(record.mean_costs or ())}
        found |= {f"{name}/multiplier {index}": value for index, value in enumerate(record.train_multipliers or ())}
        return record.epoch, _numbers(found)
    if isinstance(record, Round):
        found = {"return": record.mean_return, "accuracy": record.accuracy, "log loss": record.log_loss}
        return record.labels, _numbers({f"round/{name}": value for name, value in found.items()})
    if isinstance(record, Audit):
        found = {f"audit/{verdict.text}": verdict.estimate for verdict in record.constraints}
        return record.number, _numbers(found | {"audit/certified": float(record.certified)})
    if isinstance(record, Result):
        earned = record.returns.mean if record.returns else None
        spent = {"result/labels": record.labels_used, "result/audit labels": record.audit_labels}
        return 0, _numbers({"result/return": earned, "result/certified": float(record.certified), **spent})
    return 0, {}


def _numbers(found: Mapping[str, float | None]) -> Figures:
    return {name: float(value) for name, value in found.items() if value is not None}


class TensorBoard:
    """A callback that writes figures for TensorBoard into this folder; the extra `tensorboard` brings what it needs."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboardX import SummaryWriter  # an extra
        except ImportError:
            raise InputError("needs tensorboardX; pip install 'sidestep[tensorboard]'", place="TensorBoard") from None
        self._writer = SummaryWriter(str(folder))

    def __call__(self, event: Event) -> None:
        step, figures = figures_of(event)
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        if event.stage == "finished":
            self._writer.close()  # the next event would open another file


class WeightsAndBiases:
    """A callback that logs figures to Weights & Biases; the extra `wandb` brings what it needs.

    Arguments are those of `wandb.init`.
    """

    def __init__(self, **arguments: Any) -> None:
        try:
            import wandb  # an extra
        except ImportError:
            raise InputError("needs wandb; pip install 'sidestep[wandb]'", place="WeightsAndBiases") from None
        self._run = wandb.init(**arguments)

    def __call__(self, event: Event) -> None:
        step, figures = figures_of(event)
        if figures:
            self._run.log({**figures, "step": step})
        if event.stage == "finished":
            self._run.finish()
