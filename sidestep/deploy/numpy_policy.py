"""A planned policy that needs nothing but NumPy: its action, step by step, for one state or a batch of them."""

import base64
import copy
import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

NORM_EPSILON = 1e-5
TINY = 1e-30  # a hazard below this is taken as this


class Exported:
    """What a policy's file holds."""

    def __init__(self, about: str, arrays: dict[str, tuple[tuple[int, ...], str]]) -> None:
        """`about` is JSON; an array is its shape and the base64 text of its little-endian float32 numbers."""
        self.about: dict[str, Any] = json.loads(about)
        self.arrays = {
            name: np.frombuffer(base64.b64decode(text), "<f4").reshape(shape) for name, (shape, text) in arrays.items()
        }
        self.restart()

    def restart(self) -> None:
        """Begin a new trajectory."""
        self.clock = 0
        self.memory: list[Any] = []  # each with `kept`: what is carried from step to step, batch first

    def rows(self, state: ArrayLike) -> np.ndarray:
        """A state (size,) or a batch of them (batch, size), as a batch."""
        states, size = np.asarray(state, np.float32), self.about["state_size"]
        if states.ndim not in (1, 2) or states.shape[-1] != size:
            raise ValueError(f"a state has shape ({size},) or (batch, {size}), not {states.shape}")
        if not np.isfinite(states).all():
            raise ValueError("a state must hold finite numbers")
        return np.atleast_2d(states)

    def place(self, rows: np.ndarray) -> np.ndarray:
        """The number of each state, from its one-hot factors."""
        place: Any = 0
        start = 0
        for size in self.about["factors"]:
            place, start = place * size + rows[:, start : start + size].argmax(axis=1), start + size
        return place


class NumpyTable(Exported):
    """pi(a | s) of a finite model, one row per state; an action is drawn where the best policy mixes several."""

    def act(self, state: ArrayLike, random: np.random.Generator | None = None) -> np.ndarray:
        """The one-hot action in a state (size,) or a batch of them (batch, size)."""
        rows = self.rows(state)
        chances = self.arrays["table"][self.place(rows)]
        action = _drawn(chances, (random or np.random.default_rng(self.clock)).random(len(rows)))
        self.clock += 1
        return _one_hot(action, chances.shape[1]).reshape(*np.shape(state)[:-1], -1)


class NumpyHorizon(Exported):
    """The optimum over runs of so many steps: a run draws one of its members, each with a table for every number of
    steps left, by state and by the worst that the run has done so far. Give it the states of a run one by one."""

    def act(self, state: ArrayLike, random: np.random.Generator | None = None) -> np.ndarray:
        """The one-hot action in a state (size,) or a batch of them; `random` draws the member at the first step."""
        rows, which, letters = self.rows(state), self.arrays["which"], self.arrays["letters"]
        if not self.memory:
            self.remember(len(rows), random)
        memory, place = self.memory[0], self.place(rows)
        member, worst = memory.kept
        left = np.clip(self.about["horizon"] - self.clock, 1, which.shape[1])
        table = which[:, left - 1][member].astype(int)
        action = self.arrays["tables"][table, worst, place].astype(int)
        memory.kept = [member, np.maximum(worst, letters[place, action].astype(int))]
        self.clock += 1
        return _one_hot(action, letters.shape[1]).reshape(*np.shape(state)[:-1], -1)

    def remember(self, rows: int, random: np.random.Generator | None) -> None:
        """Begin a run for each row."""
        weights = self.arrays["weights"]
        if len(weights) > 1 and random is None:
            raise ValueError("this policy draws at random at the first step; give it a NumPy generator")
        none = np.zeros(rows, int)
        self.memory = [
            Run([none if random is None else _drawn(weights[None].astype(float), random.random(rows)), none])
        ]


class Run:
    """The member that a run of each row has drawn, and the worst that it has done so far."""

    def __init__(self, kept: list[np.ndarray]) -> None:
        self.kept = kept


def _drawn(chances: np.ndarray, random: np.ndarray) -> np.ndarray:
    """The option of each row that a number in [0, 1) falls on, when each has its chance as its length."""
    reached = chances.cumsum(axis=1)
    return (reached <= random.reshape(-1, 1) * reached[:, -1:]).sum(axis=1)


def _one_hot(index: np.ndarray, options: int) -> np.ndarray:
    return (index.reshape(-1, 1) == np.arange(options)).astype(np.float32)


class NumpyPolicy(Exported):
    """Linear, layer norm, tanh, ..., linear; then each action variable from its outputs, within the bounds."""

    def at(self, clock: int) -> "NumpyPolicy":
        """The same policy about to take step `clock`, with nothing to remember."""
        other = copy.copy(self)
        other.restart()
        other.clock = clock
        return other

    def act(self, state: ArrayLike) -> np.ndarray:
        """The action at the next step of the trajectory, for a state (size,) or a batch of them (batch, size)."""
        rows = self.rows(state)
        if not self.memory:
            self.remember(len(rows))
        seen = [(rows - self.arrays["mean"]) / self.arrays["deviation"]]
        if self.about["sees_clock"]:
            seen.append(np.zeros_like(rows[:, :1]) + (2.0 * self.clock / self.about["horizon"] - 1.0))
        seen += [memory.features() for memory in self._looking(rows)]
        actions = self._place(self._network(np.concatenate(seen, axis=1, dtype=np.float32)), rows)
        for memory in self.memory:
            memory.advance(np.concatenate([rows, actions], axis=1))
        self.clock += 1
        return actions.reshape(*np.shape(state)[:-1], -1)

    def remember(self, rows: int, random: None = None) -> None:
        """Begin a trajectory for each row."""
        count, events = self.about["members"], self.about.get("events", [])
        self.memory = [Memory(self, member, rows) for member in range(count)]
        self.memory += [EventMemory(self, count + at, rows, event) for at, event in enumerate(events)]

    def _looking(self, rows: np.ndarray) -> "list[Memory | EventMemory]":
        """The memories with the present states in them, as the policy sees them."""
        if self.about["idle"] is None:
            return self.memory
        idle = np.zeros_like(rows[:, :1]) + np.asarray(self.about["idle"], np.float32)
        steps = np.concatenate([rows, idle], axis=1)
        return [memory.after(steps) for memory in self.memory]

    def _network(self, x: np.ndarray) -> np.ndarray:
        for layer in range(self.about["layers"]):
            weight, bias, scale, shift = (
                self.arrays[f"hidden.{layer}.{part}"] for part in ("weight", "bias", "scale", "shift")
            )
            x = x @ weight.T + bias
            x = x - x.mean(axis=1, keepdims=True)
            deviation = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.float32(NORM_EPSILON))
            x = np.tanh(x / deviation * scale + shift)
        return x @ self.arrays["head.weight"].T + self.arrays["head.bias"]

    def _bounds(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """low = max(lowest, L s + l) and high = max(low, min(highest, H s + h)); constants where L and H are absent."""
        low, high = self.arrays["lowest"], self.arrays["highest"]
        if "low.slope" in self.arrays:
            low = np.maximum(low, states @ self.arrays["low.slope"].T + self.arrays["low.offset"])
            high = np.minimum(high, states @ self.arrays["high.slope"].T + self.arrays["high.offset"])
        return low, np.maximum(low, high)

    def _place(self, outputs: np.ndarray, states: np.ndarray) -> np.ndarray:
        low, high = self._bounds(states)
        pieces, start, entry = [], 0, 0
        for head in self.about["heads"]:
            size, count = head["size"], head["outputs"]
            out = outputs[:, start : start + count]
            bounds = low[..., entry : entry + size], high[..., entry : entry + size]
            pieces.append(
                _real(out, *bounds, head["squash"]) if head["kind"] == "real" else _choice(out, *bounds, head)
            )
            start, entry = start + count, entry + size
        return np.concatenate(pieces, axis=1)


def _real(mean: np.ndarray, low: np.ndarray, high: np.ndarray, squash: str) -> np.ndarray:
    """middle + half range * squash(mean) where both bounds are finite; elsewhere the mean itself, kept in its bound."""
    bounds = low, high
    bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(bounded, low, np.float32(-1.0)), np.where(bounded, high, np.float32(1.0))
    share = np.tanh(mean) if squash == "tanh" else np.clip(mean, -1.0, 1.0)
    half = np.float32(0.5)
    placed = np.where(bounded, half * (low + high) + half * (high - low) * share, mean)
    return np.clip(placed, *bounds)


def _choice(logits: np.ndarray, low: np.ndarray, high: np.ndarray, head: dict[str, Any]) -> np.ndarray:
    """The likeliest of the options: as a one-hot vector, or as a whole number counted from the lower bound."""
    index = logits.reshape(len(logits), -1, head["options"]).argmax(axis=2)
    if head["kind"] == "one-hot":
        return _one_hot(index, head["options"])
    return np.minimum(low + index.astype(np.float32), high)


class Memory:
    """What one member of the safety model remembers of a batch of trajectories: the states of its layers (of an LSTM
    also its cells), and the hazards so far."""

    def __init__(self, policy: NumpyPolicy, member: int, rows: int) -> None:
        prefix = f"safety.{member}."
        self.arrays = {n.removeprefix(prefix): a for n, a in policy.arrays.items() if n.startswith(prefix)}
        self.cell, self.layers = policy.about["cell"], policy.about["recurrent_layers"]
        self.encoders = policy.about["encoder_layers"]
        units, severities = len(self.arrays["0.recurrent_weight"]), self.arrays["head_weight"].shape[1]
        layers = self.layers * (2 if self.cell == "lstm" else 1)
        self.kept = [np.zeros((rows, size), np.float32) for size in [units] * layers + [severities]]

    def features(self) -> np.ndarray:
        """The last layer's state, and the risk so far: 1 - exp(-scale * H^power)."""
        power, total = np.exp(self.arrays["log_power"]), np.maximum(self.kept[-1], np.float32(TINY))
        stretched = np.exp(self.arrays["log_scale"] + power * np.log(total))
        return np.concatenate([self.kept[self.layers - 1], -np.expm1(-stretched)], axis=1)

    def after(self, steps: np.ndarray) -> "Memory":
        """The memory after one more step; this one stays as it is."""
        later = copy.copy(self)
        later.kept = list(self.kept)
        later.advance(steps)
        return later

    def advance(self, steps: np.ndarray) -> None:
        x = (steps - self.arrays["mean"]) / self.arrays["deviation"]
        for layer in range(self.encoders):
            x = x @ self.arrays[f"encoder.{layer}.weight"] + self.arrays[f"encoder.{layer}.bias"]
            x = _sigmoid(x) if layer + 1 == self.encoders else np.tanh(x)
        for layer in range(self.layers):
            x = self._gru(layer, x) if self.cell == "gru" else self._lstm(layer, x)
        raw = x @ self.arrays["head_weight"] + self.arrays["head_bias"]
        hazards = [np.logaddexp(raw[:, :1], np.float32(0.0))]
        for k in range(1, raw.shape[1]):
            hazards.append(hazards[-1] * _sigmoid(raw[:, k : k + 1]))
        self.kept[-1] = self.kept[-1] + np.concatenate(hazards, axis=1)

    def _gru(self, layer: int, x: np.ndarray) -> np.ndarray:
        hidden = self.kept[layer]
        units = hidden.shape[1]
        gates = x @ self.arrays[f"{layer}.input_weight"] + self.arrays[f"{layer}.bias"]
        recurrent = hidden @ self.arrays[f"{layer}.recurrent_weight"]
        reset, update = np.split(_sigmoid(gates[:, : 2 * units] + recurrent[:, : 2 * units]), 2, axis=1)
        inner = recurrent[:, 2 * units :] + self.arrays[f"{layer}.candidate_bias"]
        candidate = np.tanh(gates[:, 2 * units :] + reset * inner)
        self.kept[layer] = candidate + update * (hidden - candidate)
        return self.kept[layer]

    def _lstm(self, layer: int, x: np.ndarray) -> np.ndarray:
        gates = x @ self.arrays[f"{layer}.input_weight"] + self.arrays[f"{layer}.bias"]
        hidden, inner = self.kept[layer], self.kept[self.layers + layer]
        i, f, o, g = np.split(gates + hidden @ self.arrays[f"{layer}.recurrent_weight"], 4, axis=1)
        inner = _sigmoid(f) * inner + _sigmoid(i) * np.tanh(g)
        self.kept[layer], self.kept[self.layers + layer] = _sigmoid(o) * np.tanh(inner), inner
        return self.kept[layer]


class EventMemory:
    """What counted events remember: the chances of the states of their counter."""

    def __init__(self, policy: NumpyPolicy, member: int, rows: int, event: dict[str, Any]) -> None:
        prefix = f"safety.{member}."
        arrays = {n.removeprefix(prefix): a for n, a in policy.arrays.items() if n.startswith(prefix)}
        self.arrays = {name: array.astype(float) for name, array in arrays.items()}
        self.event, self.state_size = event, policy.about["state_size"]
        levels = len(self.arrays["thresholds"]) if event["statistic"] == "run" else 1
        self.kept = [np.tile(np.eye(event["limit"] + 1)[0], (rows, levels, 1))]
        self.steps = policy.clock

    def features(self) -> np.ndarray:
        """The chances of the counter's states, and the risk so far: P(category >= k)."""
        counter, chances = self.kept[0], self._categories()
        worse = chances @ np.tri(chances.shape[1])[:, 1:]
        return np.concatenate([counter.reshape(len(counter), -1), worse], axis=1)

    def after(self, steps: np.ndarray) -> "EventMemory":
        """The memory after one more step; this one stays as it is."""
        later = copy.copy(self)
        later.advance(steps)
        return later

    def advance(self, steps: np.ndarray) -> None:
        event, counter = self._chance(steps.astype(float)).reshape(-1, 1, 1), self.kept[0]
        going, reached = counter[..., :-1], counter[..., -1:]
        self.steps = self.steps + 1
        if self.event["statistic"] == "run":
            least = np.minimum(self.arrays["thresholds"], going.shape[2] - 0.5)
            last = np.arange(1, going.shape[2] + 1)[None, None, :] > least[None, :, None]
            broken = going.sum(axis=2, keepdims=True) * (1.0 - event)
            longer = (going * ~last * event)[..., :-1]
            now = (going * last).sum(axis=2, keepdims=True) * event
            self.kept = [np.concatenate([broken, longer, reached + now], axis=2)]
        else:
            none = np.zeros_like(reached)
            stays, moved = [going * (1.0 - event), reached], [none, going * event]
            self.kept = [np.concatenate(stays, axis=2) + np.concatenate(moved, axis=2)]

    def _chance(self, entries: np.ndarray) -> np.ndarray:
        """P(event) at a step."""
        seen = (self._derived(entries) - self.arrays["mean"]) / self.arrays["deviation"]
        regions, sides, features = self.arrays["directions"].shape
        inner = (seen @ self.arrays["directions"].reshape(-1, features).T).reshape(len(seen), regions, sides)
        inner = inner + self.arrays["offsets"][None]
        outside = -np.expm1(-np.logaddexp(0.0, -self.arrays["sharpness"][None] * inner).sum(axis=2))
        return 1.0 - np.prod(outside, axis=1)

    def _derived(self, entries: np.ndarray) -> np.ndarray:
        """The entries, sizes of actions, squares, and what entries of one variable have in common."""
        parts = [entries, np.abs(entries[:, self.state_size :]), entries**2]
        for start, size in self.event["alike"]:
            own = entries[:, start : start + size]
            largest, smallest = own.max(axis=1, keepdims=True), own.min(axis=1, keepdims=True)
            norm = np.sqrt((own**2).sum(axis=1, keepdims=True) + 1e-12)
            parts += [largest, smallest, own.mean(axis=1, keepdims=True), largest - smallest, norm]
            if size <= self.event["most_pairs"]:
                parts += [own[:, i : i + 1] - own[:, j : j + 1] for i in range(size) for j in range(i + 1, size)]
        return np.concatenate(parts, axis=1)

    def _categories(self) -> np.ndarray:
        """P(category) so far, calibrated."""
        counter, values = self.kept[0], np.arange(self.event["limit"] + 1)
        if self.event["statistic"] == "run":
            below = counter[..., :-1].sum(axis=2)
        else:
            values = values / np.maximum(self.steps, 1) if self.event["statistic"] == "share" else values
            distance = (values.reshape(-1, 1) - self.arrays["thresholds"][None]) / self.arrays["softness"]
            below = counter.reshape(len(counter), -1) @ _sigmoid(-distance)
        none = np.zeros_like(below[:, :1])
        edges = np.concatenate([none, below, none + 1.0], axis=1)
        tempered = np.maximum(np.diff(edges, axis=1), TINY) ** (1.0 / self.arrays["temperature"])
        return tempered / tempered.sum(axis=1, keepdims=True)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    half = np.float32(0.5)
    return half + half * np.tanh(half * x)
