"""The planner's options by their flat names, as on the command line: `--ppo-clip` is the field `clip` of `PPO`.

Importable without JAX, for `--help`.
"""

from dataclasses import make_dataclass
from typing import Any, Literal, NamedTuple

from sidestep.core.errors import InputError
from sidestep.core.options import Option, flag_of, options_of, place_of
from sidestep.core.records import from_json
from sidestep.planning.config import PlanConfig
from sidestep.planning.methods import (
    PID,
    PPO,
    Exact,
    LogAdam,
    Lookahead,
    Method,
    Pathwise,
    PathwiseCost,
    Projected,
    Relative,
    Score,
    Search,
)

Given = dict[str, Any]  # values by flat name
Chosen = dict[str, type[Method] | None]  # the method of each part
NO_CONSTRAINT = "none"  # the choice of no constraint gradient


class Part(NamedTuple):
    """A part of a `PlanConfig` that is one of several methods."""

    words: str
    choice: str  # the flat name of the option that chooses the method
    methods: tuple[type[Method], ...]
    help: str = ""

    def kinds(self) -> dict[str, type[Method] | None]:
        """The methods by the names that choose them."""
        none: dict[str, type[Method] | None] = {NO_CONSTRAINT: None} if Score in self.methods else {}
        return {method.kind: method for method in self.methods} | none


class Field(NamedTuple):
    """Where an option lives: a field of a method, or of the configuration itself (`part` is empty)."""

    part: str
    owner: type
    kind: str  # of the method
    name: str
    type: Any
    told: Option


PARTS = {
    "reward": Part("reward gradient", "reward_gradient", (Pathwise, PPO, Exact), "The gradient of the return."),
    "constraint": Part(
        "constraint gradient",
        "constraint_gradient",
        (PathwiseCost, Score),
        "The gradient of the constraints' costs; the exact reward gradient brings its own.",
    ),
    "multiplier": Part(
        "multiplier rule",
        "multiplier",
        (Relative, Projected, LogAdam, PID),
        "How a constraint's multiplier lambda follows its violation.",
    ),
    "search": Part("search", "search_rounds", (Search,)),
    "lookahead": Part("lookahead", "lookahead_rounds", (Lookahead,)),
}
BY_ROUNDS: tuple[str, ...] = ("search", "lookahead")  # parts that are there when they have rounds
CHOICES = {part: PARTS[part].choice for part in ("reward", "constraint", "multiplier")}


def _table() -> dict[str, list[Field]]:
    """Every flat name and the fields that it may set; it sets the first one that the chosen methods have."""
    table: dict[str, list[Field]] = {}
    owners: list[tuple[str, type, str]] = [(part, m, m.kind) for part, told in PARTS.items() for m in told.methods]
    for part, owner, kind in [*owners, ("", PlanConfig, "")]:
        for name, (type_, told) in options_of(owner).items():
            table.setdefault(flag_of(name, told), []).append(Field(part, owner, kind, name, type_, told))
    return table


TABLE = _table()


def plan_defaults() -> Given:
    """The default of every option: of the preset `default` where the model has derivatives, or else of its method."""
    own = {flat: getattr(places[0].owner(), places[0].name) for flat, places in TABLE.items()}
    return own | flattened(PlanConfig())


def plan_options() -> dict[str, tuple[Any, str]]:
    """(type, help) of every option of the planner, by flat name."""
    options: dict[str, tuple[Any, str]] = {}
    for part in PARTS.values():
        if part.help:  # the others are chosen by their rounds
            described = [f"{method.kind}: {_lower(method.__doc__ or '')}" for method in part.methods]
            kinds: Any = Literal.__getitem__(tuple(part.kinds()))
            options[part.choice] = (kinds, f"{part.help} {'; '.join(described)}.")
    return options | {flat: (places[0].type, _help(places)) for flat, places in TABLE.items()}


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def _help(places: list[Field]) -> str:
    """The help text of an option; it names the methods that have it where others have not."""
    part = PARTS.get(places[0].part)
    if part is None or {place.owner for place in places} == set(part.methods):
        return places[0].told.help
    texts: dict[str, list[str]] = {}
    for place in places:
        texts.setdefault(place.told.help, []).append(place.kind)
    return " ".join(f"({', '.join(kinds)}) {text}" for text, kinds in texts.items())


def with_options(config: PlanConfig, given: Given) -> PlanConfig:
    """The configuration with these options, by flat name; refused where the chosen methods do not have one.

    A method that takes the place of another keeps the options that both have.
    """
    for flat in given:
        if flat not in TABLE and flat not in CHOICES.values():
            raise InputError("the planner has no such option", place=place_of(flat))
    if not given:
        return config  # which may have a method of the user's own
    kept = flattened(config)
    chosen = _chosen({**kept, **given})
    if chosen["reward"] is Exact and "constraint_gradient" not in given:
        chosen["constraint"] = None
    built = _built(chosen, kept, given)
    if "log_cap" in given and built.constraint is not None and built.constraint.form != "log":
        raise InputError("has no effect without --constraint-form log; leave it out", place=place_of("log_cap"))
    return built


def flattened(config: PlanConfig) -> Given:
    """The configuration's options by flat name."""
    owners = {"": config, **{part: getattr(config, part) for part in PARTS}}
    flat: Given = {choice: getattr(owners[part], "kind", NO_CONSTRAINT) for part, choice in CHOICES.items()}
    for name, places in TABLE.items():
        for place in reversed(places):
            if type(owners[place.part]) is place.owner:
                flat[name] = getattr(owners[place.part], place.name)
    return {PARTS[part].choice: 0 for part in BY_ROUNDS} | flat


def _chosen(flat: Given) -> Chosen:
    """The method of each part, by the options that choose it."""
    chosen: Chosen = {part: PARTS[part].methods[0] if flat[PARTS[part].choice] else None for part in BY_ROUNDS}
    for part in CHOICES:
        kind, kinds = flat[PARTS[part].choice], PARTS[part].kinds()
        if kind not in kinds:
            raise InputError(f"expected one of {', '.join(kinds)}, not '{kind}'", place=place_of(PARTS[part].choice))
        chosen[part] = kinds[kind]
    return chosen


def _built(chosen: Chosen, kept: Given, given: Given) -> PlanConfig:
    """The chosen methods with their options: all of `given`, and those of `kept` that they have."""
    values: dict[str, Given] = {part: {} for part in ("", *PARTS)}
    for flat, value in {**kept, **given}.items():
        if flat in TABLE and not (value == 0 and flat in [PARTS[part].choice for part in BY_ROUNDS]):
            place = _place(flat, chosen)
            if place is not None:
                values[place.part][place.name] = value
            elif flat in given:
                raise InputError(_refusal(flat, chosen), place=place_of(flat))
    methods: dict[str, Any] = {part: method and method(**values[part]) for part, method in chosen.items()}
    return PlanConfig(**methods, **values[""])


def _place(flat: str, chosen: Chosen) -> Field | None:
    """The field that this option sets; None where no chosen method has it."""
    places = TABLE[flat]
    return next((place for place in places if not place.part or chosen[place.part] is place.owner), None)


def _refusal(flat: str, chosen: Chosen) -> str:
    """Why no chosen method has this option, and which one would."""
    part = TABLE[flat][0].part
    method, words = chosen[part], PARTS[part].words
    why = f"there is no {words}" if method is None else f"the {method.kind} {words} has no such option"
    if part in BY_ROUNDS:
        return f"{why}; give --{PARTS[part].choice.replace('_', '-')} as well"
    owners: dict[str, list[str]] = {}
    for place in TABLE[flat]:
        owners.setdefault(CHOICES[place.part], []).append(place.kind)
    having = [f"--{choice.replace('_', '-')} {' or '.join(kinds)}" for choice, kinds in owners.items()]
    return f"{why}; choose {' or '.join(having)} for it"


def require_constraints(config: PlanConfig, given: Given) -> None:
    """Refuse options that have no effect without constraints; `config` has them."""
    chosen = _chosen(flattened(config))
    for flat in given:
        place = _place(flat, chosen) if flat in TABLE else None
        if flat in ("constraint_gradient", "multiplier") or (place and place.told.constrained):
            raise InputError("has no effect, since there are no constraints; leave it out", place=place_of(flat))


def config_from_json(data: Any, place: str, *, finite: bool) -> PlanConfig:
    """The configuration that a run's config.json has at `place`; `finite` says whether the run's model is finite."""
    if isinstance(data, dict) and "reward_gradient" in data:
        return _from_flat(data, place, finite)
    record: PlanConfig = from_json(PlanConfig, data, place)
    return record


def _from_flat(data: Given, place: str, finite: bool) -> PlanConfig:
    """The configuration of an older run, which wrote every option by its flat name, whatever its methods read.

    Three options had no effect in some cases in which they were written; those are left out.
    """
    if data.get("constraint_gradient") == "exact":
        data = {**data, "constraint_gradient": NO_CONSTRAINT}
    flat_record = make_dataclass(
        "PlanConfig", [(name, kind | None, None) for name, (kind, _) in plan_options().items()]
    )
    read = vars(from_json(flat_record, data, place))
    old = flattened(PlanConfig()) | {name: value for name, value in read.items() if value is not None}
    tables = finite and old["observe"] == "state"
    if old["reward_gradient"] == "ppo" and not tables:
        old |= {"start_share": 0.0, "discount_training": False}
    if old["reward_gradient"] == "ppo" and tables and old["constraint_gradient"] == "score":
        old["constraint_form"] = "probability"
    return _built(_chosen(old), old, {})
