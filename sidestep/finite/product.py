"""A finite model with the worst category so far as its memory, and what a policy of both does in runs of T steps.

Where a run is as bad as its worst step, "the run has category k or worse" is not a cost of single steps: what counts
is the first such step. In the product of the model with a memory it is one of the last state alone:

    x = (s, m)      m' = max(m, letter(s, a))      m_T = the run's category
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order

from sidestep.core.errors import InputError
from sidestep.core.model import FinitePart
from sidestep.finite.graph import transition_matrix

TAIL = 1e-15  # chance of runs that still go on, below which nobody follows them


class Product:
    """The part of the product that can be reached: X states, sparse, A actions each."""

    def __init__(self, finite: FinitePart, then: np.ndarray) -> None:
        """`then` (M, N, A): the memory after a step from each memory, such as `worst_so_far`; a run begins with 0."""
        if (finite.start[finite.absorbing] > 0.0).any():
            raise InputError("a run may begin at its end, which exact methods for runs of so many steps do not allow")
        states, self.actions = finite.reward.shape
        matrix, memories = transition_matrix(finite), len(then)
        # Row m * N * A + s * A + a, column m' * N + s'.
        blocks = [
            [sparse.diags_array((row == after).ravel().astype(float)) @ matrix for after in range(memories)]
            for row in then
        ]
        whole = sparse.csr_array(sparse.block_array(blocks, format="csr"))
        whole.eliminate_zeros()
        kept = _reached(whole, np.flatnonzero(finite.start), self.actions)
        rows = (kept[:, None] * self.actions + np.arange(self.actions)).ravel()
        self.matrix = sparse.csr_array(whole[rows][:, kept])  # (X * A, X)
        self.arriving = sparse.csr_array(self.matrix.T)
        self.memory, self.state = np.divmod(kept, states)
        self.absorbing = finite.absorbing[self.state]
        self.start = np.where(self.memory == 0, finite.start[self.state], 0.0)
        self.shape = (memories, states)

    def spread(self, table: np.ndarray) -> np.ndarray:
        """A table (N, A) of the model as one of the product, 0 where a run has ended: (X, A)."""
        return np.where(self.absorbing[:, None], 0.0, table[self.state])

    def gathered(self, visits: np.ndarray) -> np.ndarray:
        """Visits (X, A) as those of the model's pairs, (N, A)."""
        total = np.zeros((self.shape[1], visits.shape[1]))
        np.add.at(total, self.state, visits)
        return total

    def unfolded(self, actions: np.ndarray) -> np.ndarray:
        """Actions (..., X) in every memory and state of the model, (..., M, N); 0 where nothing ever comes."""
        whole = np.zeros((*actions.shape[:-1], *self.shape), actions.dtype)
        whole[..., self.memory, self.state] = actions
        return whole


def worst_so_far(letters: np.ndarray, memories: int) -> np.ndarray:
    """m' = max(m, letter), (M, N, A)."""
    return np.maximum(np.arange(memories)[:, None, None], letters[None])


def _reached(matrix: sparse.csr_array, starts: np.ndarray, actions: int) -> np.ndarray:
    """The columns of a (X * A, X) matrix that may be reached from these, in order."""
    size = matrix.shape[1]
    coordinates = matrix.tocoo()
    edges = (np.ones(matrix.nnz + len(starts), np.int8), _edges(coordinates, starts, actions, size))
    order = breadth_first_order(sparse.csr_array(edges, shape=(size + 1, size + 1)), size, return_predecessors=False)
    return np.sort(order[order < size])


def _edges(matrix: sparse.coo_array, starts: np.ndarray, actions: int, source: int) -> tuple[np.ndarray, np.ndarray]:
    """From state to state by any action, and from a further node to every start."""
    come_from = np.concatenate([matrix.row // actions, np.full(len(starts), source)])
    return come_from, np.concatenate([matrix.col, starts])


class Course(NamedTuple):
    """What becomes of a policy's runs."""

    visits: np.ndarray  # (X, A): expected number of steps
    final: np.ndarray  # (X,): chance of the last state
    ended: float  # chance that an end is reached within the horizon


def follow(product: Product, horizon: int, chosen: Callable[[int], np.ndarray]) -> Course:
    """The distribution of a policy's runs, carried step by step:

    d_T = start,   d_{l-1} = d_l P_pi,   visits = sum_l d_l pi_l

    `chosen(l)` is the action (X,) with l steps left.
    """
    now, ended = product.start.copy(), np.zeros(len(product.start))
    visits = np.zeros(product.matrix.shape[0])
    first = np.arange(len(now)) * product.actions
    for left in range(horizon, 0, -1):
        flow = np.zeros(len(visits))
        flow[first + chosen(left)] = now
        visits += flow
        now = product.arriving @ flow
        ended[product.absorbing] += now[product.absorbing]
        now[product.absorbing] = 0.0
        if now.sum() < TAIL:
            break
    return Course(visits.reshape(-1, product.actions), now + ended, float(ended.sum()))


class Possible(NamedTuple):
    """What may happen to a policy's runs with any chance at all; by logic, where numbers would be rounded."""

    pairs: np.ndarray  # bool (X, A)
    final: np.ndarray  # bool (X,): the last state


def possible(product: Product, horizon: int, chosen: Callable[[int], np.ndarray]) -> Possible:
    """As `follow`, for sets of states."""
    now = product.start > 0.0
    ended, seen = np.zeros(len(now), bool), np.zeros((len(now), product.actions), bool)
    for left in range(horizon, 0, -1):
        taken = now[:, None] & (chosen(left)[:, None] == np.arange(product.actions))
        seen |= taken
        now = product.arriving @ taken.ravel().astype(float) > 0.0
        ended |= now & product.absorbing
        now &= ~product.absorbing
        if not now.any():
            break
    return Possible(seen, now | ended)
