"""The model is the text navigation.rddl."""

from sidestep.core.model import Model
from sidestep.models.options import Options
from sidestep.models.rddl_domain import rddl_model


def build(options: Options, double: bool) -> Model:
    return rddl_model(__package__, "navigation.rddl", options, double)
