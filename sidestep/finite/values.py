"""Value iteration, and the value of a given policy.

With discount 1 the model is a stochastic shortest path problem: the return counts until an absorbing state, which
pays 0, and only policies that reach one with probability 1 are considered; where there is none the value is -inf.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import spsolve

from sidestep.core.errors import InputError
from sidestep.core.model import FinitePart
from sidestep.finite.graph import policy_matrix, staying_actions, surely_allowed, surely_ending, transition_matrix

TOLERANCE = 1e-12  # of a sweep's change, relative to the largest value
TIE = 1e-9  # actions whose values differ by less are equally good
SWEEPS = 100_000


@dataclass(frozen=True, eq=False)
class Values:
    """Optimal values (N,), the values of single actions (N, A), and an optimal policy (N, A), deterministic."""

    values: np.ndarray
    action_values: np.ndarray
    policy: np.ndarray


def value_iteration(
    finite: FinitePart,
    reward: np.ndarray | None = None,
    *,
    discount: float = 1.0,
    allowed: np.ndarray | None = None,
) -> Values:
    """V(s) = max_a Q(s, a),  Q(s, a) = R(s, a) + discount * sum_s' P(s' | s, a) V(s'),  over the `allowed` actions.

    `reward` (N, A) replaces the model's own. States in which one cannot be sure to find allowed actions are worth -inf,
    and no action that may lead there is taken. With discount 1 the sweeps begin at the value of a policy that ends:
    from below they reach the best of those even where going round in circles costs nothing.
    """
    reward = finite.reward if reward is None else reward
    allowed = np.ones(reward.shape, bool) if allowed is None else allowed
    matrix, values = transition_matrix(finite), np.zeros(len(reward))
    if discount < 1.0:
        inside = surely_allowed(finite, allowed)
    else:
        inside, shortest = surely_ending(finite, allowed)
        values = np.where(inside, evaluate(finite, np.eye(reward.shape[1])[shortest], reward), 0.0)
    allowed = staying_actions(finite, allowed, inside)
    counts = inside & ~finite.absorbing

    def action_values(values: np.ndarray) -> np.ndarray:
        return np.where(allowed, reward + discount * (matrix @ values).reshape(reward.shape), -np.inf)

    for _ in range(SWEEPS):
        swept = np.where(counts, action_values(values).max(axis=1), 0.0)
        change, values = np.abs(swept - values).max(), swept
        if change <= TOLERANCE * max(1.0, np.abs(values).max()):
            break
    else:
        raise InputError(f"value iteration did not settle in {SWEEPS} sweeps; is there a cycle with positive reward?")

    best = action_values(values)
    if discount < 1.0:
        action = best.argmax(axis=1)
    else:
        _, action = surely_ending(finite, allowed & (best >= values[:, None] - TIE))
    return Values(np.where(inside, values, -np.inf), best, np.eye(reward.shape[1])[action])


def evaluate(
    finite: FinitePart, policy: np.ndarray, reward: np.ndarray | None = None, *, discount: float = 1.0
) -> np.ndarray:
    """The values V = R_pi + discount * P_pi V of a policy (N, A), for the model's reward or any such table (N, A).

    With discount 1 a policy may stay for ever among states that are not absorbing: that is worth 0 where nothing is
    paid there, else -inf, inf, or nan when both signs are paid; and so from every state that may lead there.
    """
    matrix = policy_matrix(finite, policy)
    paid = np.sum(policy * (finite.reward if reward is None else reward), axis=1)
    values, unknown = np.zeros(len(paid)), ~finite.absorbing
    if discount == 1.0:
        closed = _closed_classes(matrix)
        low, high = (_leads_to(matrix, _classes_with(closed, unknown & sign)) for sign in (paid < 0, paid > 0))
        values = np.select([low & high, low, high], [np.nan, -np.inf, np.inf], 0.0)
        unknown = (closed < 0) & np.isfinite(values)
    system = sparse.eye_array(int(unknown.sum())) - discount * matrix[unknown][:, unknown]
    values[unknown] = spsolve(sparse.csc_array(system), paid[unknown])
    return values


def from_start(finite: FinitePart, values: np.ndarray) -> float:
    """The expected value of the first state."""
    possible = finite.start > 0
    return float(finite.start[possible] @ values[possible])


def _closed_classes(matrix: sparse.csr_array) -> np.ndarray:
    """The number of the closed class (one that is never left) of each state, -1 for states that are left for good."""
    count, component = connected_components(matrix, connection="strong")
    row, column = matrix.nonzero()
    leaves = np.zeros(count, bool)
    leaves[component[row[component[row] != component[column]]]] = True
    return np.where(leaves[component], -1, component)


def _classes_with(closed: np.ndarray, states: np.ndarray) -> np.ndarray:
    """All states of the closed classes that hold one of these states."""
    return np.isin(closed, np.unique(closed[states & (closed >= 0)]))


def _leads_to(matrix: sparse.csr_array, targets: np.ndarray) -> np.ndarray:
    """The states from which one of the targets may be reached."""
    reached = targets
    while True:
        more = reached | (matrix @ reached.astype(float) > 0)
        if np.array_equal(more, reached):
            return reached
        reached = more
