"""What an RDDL text says about derivatives before anything is run."""

from pyRDDLGym.core.compiler.model import RDDLLiftedModel

from sidestep.core.model import Gradient
from sidestep.models.rddl_expressions import walk

DISCRETE_NOISE = {
    "Bernoulli", "Discrete", "UnnormDiscrete", "Poisson", "Binomial", "NegativeBinomial", "Geometric", "Multinomial",
}  # fmt: skip
STEP_FUNCTIONS = {"floor", "ceil", "round", "sgn", "div", "mod", "fmod"}


def gradient_traits(rddl: RDDLLiftedModel) -> tuple[Gradient, tuple[str, ...]]:
    """How the model may be differentiated, and in words what stands in the way or goes unseen.

    A sample of discrete noise has no derivative in its parameters, and a boolean or integer fluent has none at
    all. A comparison of fluents is a step: its derivative is zero where it exists, so a gradient does not see it.
    """
    obstacles, steps = [], []
    for kind, fluents in (("state", rddl.state_fluents), ("action", rddl.action_fluents)):
        for fluent in fluents:
            if rddl.variable_ranges[fluent] != "real":
                obstacles.append(f"the {kind}-fluent '{fluent}' is not real")
    formulas = {name: expression for name, (_, expression) in rddl.cpfs.items()} | {"reward": rddl.reward}
    for name, formula in formulas.items():
        for expression in walk(formula):
            kind, operator = expression.etype
            operator = operator.removesuffix("(p)")  # Discrete_{?x : type} is Discrete(p) to the tools
            fluent = not rddl.is_non_fluent_expression(expression.args)
            if kind in ("randomvar", "randomvector") and operator in DISCRETE_NOISE and fluent:
                obstacles.append(f"'{name}' draws {operator} noise whose parameters depend on the state or action")
            elif fluent and (kind == "relational" or (kind == "func" and operator in STEP_FUNCTIONS)):
                steps.append(name)
    notes = tuple(dict.fromkeys(obstacles))
    if notes:
        return "none", notes
    notes = tuple(f"'{name}' has a step that gradients do not see" for name in dict.fromkeys(steps))
    return "exact", notes
