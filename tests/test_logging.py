"""Callbacks that log: what TensorBoard's files hold, read back, and what any callback is told."""

import math
import struct
import sys

import pytest

from sidestep.certification.records import Audit, Result, Return, Verdict
from sidestep.core.errors import InputError
from sidestep.deploy.logging import TensorBoard, WeightsAndBiases, figures_of
from sidestep.deploy.solve import Event
from sidestep.planning.rows import PlanRow
from sidestep.runs.records import Round

EVENTS = [
    Event("exploring"),
    Event("tested", PlanRow(seed_index=1, epoch=50, mean_return=-3.5, mean_costs=(0.25,), train_multipliers=(2.0,))),
    Event("round", Round(round=0, labels=120, mean_return=-3.0, accuracy=0.75)),
    Event(
        "audited",
        Audit(
            number=1,
            method="fixed",
            labelled_by="rule",
            policy="",
            seed=0,
            most=10,
            promised=0.95,
            status="certified",
            constraints=(Verdict("none>=0.5", 0.9, 0.6, 1.0, True, True),),
        ),
    ),
    Event("finished", Result(model="m", returns=Return(-2.5, 1.0, -2.0), labels_used=120, audit_labels=10)),
]


def test_figures_are_plain_numbers():
    told = [figures_of(event) for event in EVENTS]
    assert told[0] == (0, {})
    assert told[1] == (50, {"policy 1/return": -3.5, "policy 1/cost 0": 0.25, "policy 1/multiplier 0": 2.0})
    assert told[2] == (120, {"round/return": -3.0, "round/accuracy": 0.75})
    assert told[3] == (1, {"audit/none>=0.5": 0.9, "audit/certified": 1.0})
    assert told[4][1]["result/return"] == -2.5
    assert all(math.isfinite(value) for _, figures in told for value in figures.values())


def records(file):
    """The records of a TFRecord file: length, its checksum, the data, its checksum."""
    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[16 + length :]


def test_tensorboard_gets_every_figure(tmp_path):
    events_of = pytest.importorskip("tensorboardX.proto.event_pb2", reason="the extra `tensorboard` is not installed")
    callback = TensorBoard(tmp_path)
    for event in EVENTS:
        callback(event)
    (file,) = tmp_path.glob("events.out.tfevents.*")
    found = {}
    for record in records(file):
        event = events_of.Event.FromString(record)
        found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
    wanted = {(name, step): value for step, figures in map(figures_of, EVENTS) for name, value in figures.items()}
    assert {step for _, step in found} == {step for _, step in wanted}
    assert sorted(found.values()) == pytest.approx(sorted(wanted.values()))


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(InputError, match=r"sidestep\[wandb\]"):
        WeightsAndBiases(project="x")
    with pytest.raises(InputError, match=r"sidestep\[tensorboard\]"):
        TensorBoard("x")
