"""Constraints mean what they say, have the paper's normal form, and are refused with a reason when they cannot hold."""

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog

import sidestep
from sidestep.core.constraints import Constraint, Scale, find_conflict, parse_constraints, satisfiable
from sidestep.core.errors import InputError

SCALE = Scale()
NAMES = st.text("abcdefghäß-_. 0123456789", min_size=1, max_size=8).map(lambda name: " ".join(name.split()))
SCALES = st.lists(NAMES.filter(bool), min_size=2, max_size=6, unique=True).map(lambda names: Scale(tuple(names)))
BLANKS = st.text(" \t", max_size=2)


@st.composite
def constraint_texts(draw, scale):
    """(text, first category, last category, operator, bound) of some constraint on `scale`."""
    category = draw(st.integers(0, len(scale) - 1))
    or_worse = category > 0 and draw(st.booleans())
    operator = draw(st.sampled_from(["<=", ">="]))
    twentieths = draw(st.integers(0, 20))
    number = draw(st.sampled_from([str(twentieths / 20), f"{twentieths * 5}%", f"{twentieths * 5} %"]))
    tokens = [scale.categories[category], "+" if or_worse else "", operator, number]
    text = "".join(token + draw(BLANKS) for token in tokens)
    return text, category, len(scale) - 1 if or_worse else category, operator, Fraction(twentieths, 20)


@st.composite
def many_constraints(draw):
    scale = draw(SCALES)
    drawn = draw(st.lists(constraint_texts(scale), min_size=1, max_size=6))
    return scale, [Constraint.parse(text, scale) for text, *_ in drawn]


def linear_program_is_feasible(constraints, categories):
    return linprog(
        np.zeros(categories),
        A_ub=[constraint.cost_weights for constraint in constraints],
        b_ub=[constraint.tolerance for constraint in constraints],
        A_eq=[[1.0] * categories],
        b_eq=[1.0],
    ).success


@pytest.mark.parametrize(
    ("text", "weights", "sense", "bound", "cost", "tolerance"),
    [
        ("none>=0.95", (1, 0, 0), ">=", 0.95, (0, 1, 1), 0.05),
        ("severe<=0.01", (0, 0, 1), "<=", 0.01, (0, 0, 1), 0.01),
        ("mild+<=0.05", (0, 1, 1), "<=", 0.05, (0, 1, 1), 0.05),
        (" none >= 95 % ", (1, 0, 0), ">=", 0.95, (0, 1, 1), 0.05),
        ("mild + <= 5%", (0, 1, 1), "<=", 0.05, (0, 1, 1), 0.05),
        ("severe<=1e-3", (0, 0, 1), "<=", 0.001, (0, 0, 1), 0.001),
        ("severe<=.5", (0, 0, 1), "<=", 0.5, (0, 0, 1), 0.5),
        ("severe+>=0", (0, 0, 1), ">=", 0.0, (1, 1, 0), 1.0),
    ],
)
def test_parsing(text, weights, sense, bound, cost, tolerance):
    constraint = Constraint.parse(text, SCALE)
    assert (constraint.weights, constraint.sense, constraint.bound) == (weights, sense, bound)
    assert (constraint.cost_weights, constraint.tolerance) == (cost, tolerance)
    assert constraint.text == "".join(text.split())


@given(st.data())
def test_any_spelling_gives_the_event_and_the_bound(data):
    scale = data.draw(SCALES)
    text, first, last, operator, bound = data.draw(constraint_texts(scale))
    constraint = Constraint.parse(text, scale)
    assert constraint.weights == tuple(int(first <= k <= last) for k in range(len(scale)))
    assert constraint.sense == operator
    assert constraint.bound == float(bound)
    assert Constraint.parse(constraint.text, scale) == constraint


@given(many_constraints(), st.data())
def test_normal_form_says_the_same(drawn, data):
    """P(event) >= b if and only if E[C] <= d, for shares that rollouts can have."""
    scale, constraints = drawn
    counts = data.draw(st.lists(st.integers(0, 40), min_size=len(scale), max_size=len(scale)).filter(any))
    shares = [count / sum(counts) for count in counts]
    for constraint in constraints:
        cost = sum(Fraction(n, sum(counts)) * weight for n, weight in zip(counts, constraint.cost_weights, strict=True))
        assert constraint.met(shares) == (cost <= constraint.exact_tolerance)
        assert constraint.met(np.array(shares, np.float32)) == (cost <= constraint.exact_tolerance)


@given(many_constraints())
def test_conflicts_agree_with_linear_programming(drawn):
    scale, constraints = drawn
    assert satisfiable(constraints) == linear_program_is_feasible(constraints, len(scale))


@given(many_constraints())
def test_a_conflict_names_no_bystander(drawn):
    _, constraints = drawn
    conflict = find_conflict(constraints)
    assume(conflict)
    assert len(conflict) > 1
    assert not satisfiable(conflict)
    for innocent in conflict:
        assert satisfiable([constraint for constraint in conflict if constraint is not innocent])


def test_exact_boundaries_are_no_conflict():
    assert len(parse_constraints(["none>=0.7", "mild>=0.1", "severe>=0.2"], SCALE)) == 3
    assert len(parse_constraints(["none<=0.7", "mild<=0.1", "severe<=0.2"], SCALE)) == 3
    assert parse_constraints([], SCALE) == ()
    assert parse_constraints(["none>=0"], SCALE)[0].met([0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("nome>=0.95", 1, r"no category 'nome' \(did you mean 'none'\?\); the scale is none < mild < severe"),
        ("  worse<=0.1", 3, "no category 'worse'; the scale is none < mild < severe"),
        ("mild+severe<=0.1", 1, "no category"),
        ("none+<=0.1", 1, "is every category"),
        (">=0.9", 1, "needs a category before"),
        ("none 0.95", 10, "needs '<=' or '>='"),
        ("", 1, "needs '<=' or '>='"),
        ("none>0.95", 5, "strict; write '>='"),
        ("none <0.95", 6, "strict; write '<='"),
        ("none=0.95", 5, "no operator"),
        ("none=>0.95", 5, "write '>='"),
        ("0.1<=none<=0.9", 10, "two operators"),
        ("none>=", 7, "needs a number"),
        ("none>= much", 8, "'much' is not a number"),
        ("none>=nan", 7, "not a number"),
        ("none>=1e9999999", 7, "not a number"),
        ("none>=0,95", 7, "not a number"),
        ("none>=95", 7, "between 0 and 1; for per cent write 95%"),
        ("none>=101%", 7, "between 0 and 1"),
        ("none>=-0.1", 7, "between 0 and 1"),
    ],
)
def test_refusals_name_the_column(text, column, reason):
    with pytest.raises(InputError, match=reason) as error:
        Constraint.parse(text, SCALE)
    assert str(error.value).startswith(f"constraint '{text}', column {column}: ")


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["none>=0.95", "mild>=0.2"], "'none>=0.95' and 'mild>=0.2' cannot hold together"),
        (["none<=0.3", "mild<=0.3", "severe<=0.3"], "'none<=0.3', 'mild<=0.3' and 'severe<=0.3' cannot hold"),
        (["severe<=0.5", "mild+<=0.1", "mild>=0.2"], "'mild[+]<=0.1' and 'mild>=0.2' cannot hold"),
        (["none>=0.7", "mild>=0.1", "severe>=0.2000000001"], "cannot hold"),
        (["none>=0.95", "none >= 95%"], "bound the same thing; leave out 'none>=95%'"),
        (["none>=0.95", "mild+<=0.1"], "bound the same thing; leave out 'mild[+]<=0.1'"),
        (["none>=0.9", "none>=0.95"], "bound the same thing; leave out 'none>=0.9'"),
    ],
)
def test_refusals_of_several(texts, reason):
    with pytest.raises(InputError, match=reason):
        parse_constraints(texts, SCALE)


@pytest.mark.parametrize(
    "names", [(), ("one",), ("a", "a"), ("a", ""), ("a", " b"), ("a", "b+"), ("a<b", "c"), ("a", "b\n"), ("a", "b,c")]
)
def test_scales_that_are_none(names):
    with pytest.raises(InputError):
        Scale(names)


@given(SCALES)
def test_scale_text_round_trip(scale):
    assert Scale.parse(str(scale)) == scale
    assert [scale.index(name) for name in scale.categories] == list(range(len(scale)))


def test_constraints_need_no_jax():
    code = "import sys, sidestep.constraints; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(sidestep.__file__).parents[1])
