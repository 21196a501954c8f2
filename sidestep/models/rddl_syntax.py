"""From RDDL text to its syntax tree, with the parser's complaints in words."""

import re
import warnings
from functools import cache
from typing import no_type_check

from ply.lex import LexToken
from ply.yacc import NullLogger
from pyRDDLGym.core.parser.nonfluents import NonFluents
from pyRDDLGym.core.parser.parser import RDDLlex, RDDLParser
from pyRDDLGym.core.parser.rddl import RDDL

from sidestep.core.errors import InputError
from sidestep.models.rddl_expressions import mentioned
from sidestep.models.rddl_text import RddlText, did_you_mean

AGGREGATIONS = (
    "sum", "prod", "avg", "min", "max", "forall", "exists", "argmin", "argmax", "det", "Discrete", "UnnormDiscrete",
)  # fmt: skip
SECTIONS = {
    "types", "pvariables", "cpfs", "reward", "termination", "action-preconditions", "state-invariants", "requirements",
    "state-action-constraints", "domain", "instance", "non-fluents", "objects", "init-state", "max-nondef-actions",
    "horizon", "discount",
}  # fmt: skip
IN_WORDS = {
    "IDENT": "a name",
    "VAR": "a variable like ?x",
    "ENUM_VAL": "an object like @x",
    "INTEGER": "a whole number",
    "DOUBLE": "a number",
    "$end": "the end of the text",
}


class Unexpected(Exception):
    """The parser met a token (None at the end of the text) where it could go on with others only."""

    def __init__(self, token: LexToken | None, expected: set[str]) -> None:
        super().__init__(token)
        self.token, self.expected = token, expected


class _Parser(RDDLParser):
    """The rules p_... have no types: ply reads their signatures itself."""

    @no_type_check
    def p_rddl(self, p):
        """rddl : rddl_block"""
        p[1].setdefault("non_fluents", NonFluents("none", {}))
        p[0] = RDDL(p[1])

    @no_type_check
    def p_error(self, p):
        raise Unexpected(p, {kind for kind in self._parser.action[self._parser.state] if self._could_go_on_with(kind)})

    def _could_go_on_with(self, kind: str) -> bool:
        """Run the automaton on a copy of its stack until it shifts this kind of token or cannot."""
        stack = list(self._parser.statestack)
        while True:
            action = self._parser.action[stack[-1]].get(kind)
            if action is None or action >= 0:  # an error; or a shift, or the end
                return action is not None
            reduced = self._parser.productions[-action]
            del stack[len(stack) - reduced.len :]
            stack.append(self._parser.goto[stack[-1]][reduced.name])


@cache
def _parser() -> _Parser:
    """The grammar's tables take a second to build; once per process is enough."""
    parser = _Parser(lexer=None, verbose=False)
    parser.build(start="rddl", debug=False, write_tables=False, errorlog=NullLogger())
    return parser


def parse_rddl(text: RddlText, horizon: int | None = None) -> RDDL:
    """The syntax tree of the text, or an InputError at the line where it stops making sense.

    `horizon` replaces that of the text.
    """
    for block in ("domain", "instance"):
        if text.line_of_block(block) is None:
            raise InputError(
                f"expected a block '{block} name {{ ... }}' and found none"
                + ("; name its file too, as domain.rddl:instance.rddl" if block == "instance" else ""),
                place=text.parts[0 if block == "domain" else -1][0],
            )
    _check_aggregations(text)
    parser = _parser()
    parser.lexer = RDDLlex()
    parser.lexer.build()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            tree, unexpected = parser.parse(text.whole), None
        except Unexpected as error:
            tree, unexpected = None, error
        except KeyError as error:
            raise _missing(f"{error.args[0]}", "domain", text) from error
    for warning in caught:
        illegal = re.search(r"illegal character (.) at line (\d+)", str(warning.message))
        if illegal:
            raise InputError(f"'{illegal[1]}' has no meaning in RDDL; remove it", place=text.place(int(illegal[2])))
    if unexpected is not None:
        raise _in_one_sentence(unexpected, text) from unexpected
    assert tree is not None
    if horizon is not None:
        tree.instance.horizon = horizon
    for section, expected, accepts in (
        ("horizon", "a whole number from 1 on", lambda value: isinstance(value, int) and value >= 1),
        ("discount", "above 0 and at most 1", lambda value: 0 < value <= 1),
    ):
        if not hasattr(tree.instance, section):
            raise _missing(section, "instance", text)
        if not accepts(getattr(tree.instance, section)):
            raise InputError(
                f"the {section} must be {expected}, not {getattr(tree.instance, section)}", place=text.place_of(section)
            )
    _read_constraints_as_preconditions(tree)
    return tree


def _read_constraints_as_preconditions(tree: RDDL) -> None:
    """RDDL's older section state-action-constraints forbids actions too; the tools read action-preconditions alone."""
    actions = {variable.name for variable in tree.domain.pvariables if variable.fluent_type == "action-fluent"}
    tree.domain.preconds = [
        *tree.domain.preconds,
        *(constraint for constraint in tree.domain.constraints if mentioned(constraint, actions)),
    ]


def _missing(section: str, block: str, text: RddlText) -> InputError:
    form = f"{section} {{ ... }};" if section in ("pvariables", "cpfs", "objects") else f"{section} = ...;"
    line = text.line_of_block(block)
    assert line is not None
    return InputError(f"the {block} has no '{form}'; add it", place=text.place(line))


def _check_aggregations(text: RddlText) -> None:
    """The parser takes any word for one and fails later without saying where."""
    for found in re.finditer(r"([A-Za-z][\w-]*)_\s*\{", text.bare):
        name = found[1]
        if name not in AGGREGATIONS:
            raise InputError(
                f"there is no aggregation '{name}_{{...}}'; "
                + (did_you_mean(name, AGGREGATIONS) or f"there are {', '.join(AGGREGATIONS)}"),
                place=text.place(text.line_at(found.start())),
            )


def _in_one_sentence(error: Unexpected, text: RddlText) -> InputError:
    token, expected = error.token, error.expected
    if token is None:
        end = text.place(text.line_at(len(text.bare.rstrip())))
        return InputError(f"the text ends too early; expected {_listed(expected)} after this line", place=end)
    found = text.whole[token.lexpos :][: len(str(token.value))] if token.type in IN_WORDS else str(token.value)
    line, line_before = text.line_at(token.lexpos), text.line_at(len(text.bare[: token.lexpos].rstrip()))
    reserved = RDDLlex().reserved
    if token.type == "DOLLAR_SIGN":
        return InputError("'$' has no meaning in RDDL; remove it", place=text.place(line))
    if found in reserved and found not in SECTIONS and "IDENT" in expected:
        return InputError(
            f"'{found}' is a word of RDDL itself and cannot be a name; choose another", place=text.place(line)
        )
    hint = "; '==' compares" if token.type == "ASSIGN_EQUAL" and "PLUS" in expected else ""
    if token.type == "IDENT":
        question = did_you_mean(found, (word for word in reserved if reserved[word] in expected))
        hint = f"; {question}" if question else ""
    if "SEMI" in expected and not hint:
        line = line_before
    return InputError(f"expected {_listed(expected)} before '{found}'{hint}", place=text.place(line))


def _listed(expected: set[str]) -> str:
    """What may stand here; inside an expression only what could end it, for the operators are many."""
    if "PLUS" in expected and expected & {"SEMI", "RPAREN", "RBRACK", "COMMA"}:
        expected = expected & {"SEMI", "RPAREN", "RBRACK", "RCURLY", "COMMA", "THEN", "ELSE"}
    elif "PLUS" in expected or "IF" in expected:
        return "an expression"
    *others, last = sorted(_spelling(kind) for kind in expected)
    return f"{', '.join(others)} or {last}" if others else last


def _spelling(kind: str) -> str:
    if kind in IN_WORDS:
        return IN_WORDS[kind]
    reserved = {kind: word for word, kind in RDDLlex().reserved.items()}
    return f"'{reserved[kind] if kind in reserved else getattr(RDDLlex, f't_{kind}').replace(chr(92), '')}'"
