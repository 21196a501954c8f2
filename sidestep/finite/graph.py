"""A finite model as a sparse matrix and as a graph: who can surely reach the end."""

import numpy as np
from scipy import sparse

from sidestep.core.model import FinitePart


def transition_matrix(finite: FinitePart) -> sparse.csr_array:
    """P as a sparse matrix (N * A, N); row s * A + a holds P(. | s, a)."""
    states, actions, outcomes = finite.successor.shape
    pairs = np.arange(states * actions).repeat(outcomes)
    entries = (finite.probability.ravel(), (pairs, finite.successor.ravel()))
    matrix = sparse.csr_array(entries, shape=(states * actions, states))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def policy_matrix(finite: FinitePart, policy: np.ndarray) -> sparse.csr_array:
    """P_pi(s' | s) = sum_a policy[s, a] P(s' | s, a), sparse (N, N)."""
    states, actions = policy.shape
    chooses = (policy.ravel(), (np.arange(states).repeat(actions), np.arange(states * actions)))
    matrix = sparse.csr_array(sparse.csr_array(chooses, shape=(states, states * actions)) @ transition_matrix(finite))
    matrix.eliminate_zeros()
    return matrix


def staying_actions(finite: FinitePart, allowed: np.ndarray, states: np.ndarray) -> np.ndarray:
    """The allowed actions that never leave these states, bool (N, A)."""
    return allowed & np.all(states[finite.successor] | (finite.probability == 0), axis=2)


def surely_allowed(finite: FinitePart, allowed: np.ndarray) -> np.ndarray:
    """The states from which one can go on with allowed actions for ever, bool (N,): the largest set that some allowed
    action of each of its states does not leave."""
    inside = np.ones(len(finite.absorbing), bool)
    while True:
        kept = finite.absorbing | staying_actions(finite, allowed, inside).any(axis=1)
        if np.array_equal(kept, inside):
            return inside
        inside = kept


def surely_ending(finite: FinitePart, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The states from which allowed actions can reach an absorbing state with probability 1, bool (N,), and for each
    an action (N,) of one policy that does so: one that may come a step nearer and never leaves these states.

    The largest set X from each of whose states the end can be reached by actions that stay in X.
    """
    possible = finite.probability > 0
    inside = np.ones(len(finite.absorbing), bool)
    while True:
        stays = staying_actions(finite, allowed, inside)
        reached, action = finite.absorbing.copy(), np.zeros(len(inside), int)
        while True:
            nearer = stays & np.any(reached[finite.successor] & possible, axis=2)
            new = nearer.any(axis=1) & ~reached
            if not new.any():
                break
            action[new] = nearer[new].argmax(axis=1)
            reached |= new
        if np.array_equal(reached, inside):
            return inside, action
        inside = reached


def reachable(finite: FinitePart, allowed: np.ndarray) -> np.ndarray:
    """The states that allowed actions may visit, bool (N,)."""
    possible = allowed[:, :, None] & (finite.probability > 0)
    visited = finite.start > 0
    while True:
        more = visited.copy()
        more[finite.successor[visited][possible[visited]]] = True
        if np.array_equal(more, visited):
            return visited
        visited = more
