"""The command line: what can be asked for, and who does it. Heavy imports wait until a command runs."""

import contextlib
import io
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

from sidestep.campaign.config import CampaignConfig
from sidestep.cli.console import own_output
from sidestep.core.errors import DiskFull, Infeasible, InputError, shortened
from sidestep.core.options import options_of
from sidestep.models.user_code import users_fault
from sidestep.planning.options import plan_options
from sidestep.runs.records import MOST_SEEDS
from sidestep.runtime.compilation_cache import keep_compiled_programs
from sidestep.runtime.files import NO_SPACE

DESCRIPTION = (
    "Safe planning around side effects that nobody wrote into the model. Exit status: 0 done (plan, resume, certify: "
    "every constraint is certified), 1 finished but not certified, or infeasible, 2 bad input, 3 labels are needed."
)
LARGEST = 2**31 - 1  # whole number that an option takes; JAX would silently cut a larger seed

ModelReference = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(
        metavar="MODEL",
        help="a built-in name (see `sidestep models`), a path to an .rddl, .bp or .nav file, "
        "domain.rddl:instance.rddl, or file.py:object; options follow a question mark, as in hvac?rooms=24",
    ),
]


StorePath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STORE", help="a store's file")]

Trust = Annotated[
    bool,
    tyro.conf.arg(
        help="Run Python code that came with the run's folder; your own runs do not need it (docs/trust.md)."
    ),
]

RunPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR", help="a run's folder")]


def _changes(name: str, options: dict[str, tuple[Any, str]]) -> type:
    """A dataclass with these options (type, help), each None unless the user gave it."""
    fields: list[tuple[str, Any, None]] = []
    for flag, (kind, text) in options.items():
        told = tyro.conf.arg(help=text, metavar=_value_name(kind), help_behavior_hint="")
        fields.append((flag, Annotated[kind | None, told], None))
    return make_dataclass(name, fields, kw_only=True)


def _value_name(kind: Any) -> str:
    """How `--help` shows the values of an option of this type."""
    choices = (True, False) if kind is bool else get_args(kind) if get_origin(kind) is Literal else ()
    if choices:
        return f"{{{','.join(map(str, choices))}}}"
    return "INT [INT ...]" if get_origin(kind) is tuple else kind.__name__.upper()


def _given(changes: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(changes).items() if value is not None}


PlanChanges: Any = _changes("PlanChanges", plan_options())
CampaignChanges: Any = _changes(
    "CampaignChanges", {name: (kind, told.help) for name, (kind, told) in options_of(CampaignConfig).items()}
)


@dataclass(kw_only=True)
class Common:
    seed: int = 0
    """Every random number of the command follows from this one."""
    quiet: bool = False
    """Print the result and nothing else."""


@dataclass(kw_only=True)
class Demo(Common):
    """The main job on Navigation, from no label to a certified policy and its report, in minutes."""

    out: Path = Path("runs/demo")
    """The run's folder; a new one beside it when it is taken."""

    def run(self) -> int:
        from sidestep.cli.demo import demo

        return demo(**_options(self))


@dataclass(kw_only=True)
class Models(Common):
    """List the built-in models, one line each."""

    def run(self) -> int:
        from sidestep.cli.models import list_models

        return list_models()


@dataclass(kw_only=True)
class Check(Common):
    """Is this model usable, differentiable, and if not, why?"""

    model: ModelReference

    def run(self) -> int:
        from sidestep.cli.models import check

        return check(self.model, self.seed)


@dataclass(kw_only=True)
class Collect(Common):
    """Roll out trajectories and put them into a store of labels."""

    model: ModelReference
    store: Path
    """The store's file; it is made if it is not there."""
    policy: str = "explore"
    """uniform: independent random actions; explore: random behaviour that covers the state space; or a run's folder."""
    count: int = 1000
    """How many trajectories."""
    horizon: int | None = None
    """Steps of each at most; the model's own horizon without it."""
    rule: str | None = None
    """The rule whose categories the store will hold, where it is not the model's own."""

    def run(self) -> int:
        from sidestep.cli.labels import collect

        return collect(**_options(self))


@dataclass(kw_only=True)
class Label(Common):
    """Label the trajectories of a store by a rule, or move trajectories and labels in and out of files."""

    store: StorePath
    rule: str | None = None
    """A rule's name, or file.py:function; the model's own without it."""
    model: str | None = None
    """The model of the store, where its name alone does not say it (a file, options)."""
    annotator: str = ""
    """Who labels; without it the rule's name."""
    every: bool = False
    """Label every trajectory anew, not only those without a label."""
    verify: bool = False
    """Label nothing, and look whether every trajectory and label is still what was put in."""
    import_: Annotated[Path | None, tyro.conf.arg(name="import", metavar="FILE")] = None
    """Read trajectories with labels from CSV (one row a step), NPZ or Parquet, or labels alone from CSV."""
    export: Path | None = None
    """Write them; a name that ends in .labels.csv gets the whole log of labels."""
    next: int = 0
    """Label nothing, and list this many unlabelled trajectories that are most worth a label, by --safety."""
    safety: Path | None = None
    """The fitted safety model that --next asks."""

    def run(self) -> int:
        from sidestep.cli.labels import label

        return label(**_options(self))


FIT_CHANGES = ("steps", "batch", "learning_rate", "balance", "sparsity", "average", "held_out")


@dataclass(kw_only=True)
class Fit(Common):
    """Learn the pattern behind a store's labels, and say how good the safety model is."""

    store: StorePath
    out: Path
    """The safety model's file (.safetensors); a reliability plot is put beside it."""
    kind: Literal["hazard", "classifier", "markov", "share"] = "hazard"
    """hazard: a hazard for every step; classifier: the paper's recurrent classifier; markov: of single steps; share: of
    single steps and of the share of them."""
    layers: int | None = None
    """Recurrent layers."""
    units: int | None = None
    """Units of each."""
    dropout: float | None = None
    """Share of units dropped in training."""
    members: int = 1
    """More than one make an ensemble."""
    start: Path | None = None
    """Go on from this fitted model instead of a fresh one."""
    resolve: Literal["newest", "majority"] = "newest"
    """Which label counts where a trajectory has several."""
    steps: int | None = None
    """Minibatches at most."""
    batch: int | None = None
    """Trajectories in a minibatch."""
    learning_rate: float | None = None
    """Adam's step size."""
    balance: float | None = None
    """Draw rare categories more often: 0 as they come, 1 all alike."""
    sparsity: float | None = None
    """Pull towards reading few entries of state and action; 0.01 helps where side effects hang on few of many."""
    average: float | None = None
    """Keep a running mean of the parameters that forgets by this factor, such as 0.98."""
    held_out: float | None = None
    """Share kept for early stopping, calibration and the report."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        from sidestep.cli.safety import fit_store

        options = _options(self)
        changes = {name: options.pop(name) for name in FIT_CHANGES}
        given = {name: value for name, value in changes.items() if value is not None}
        return fit_store(changes=given, as_json=options.pop("json"), **options)


@dataclass(kw_only=True)
class Explain(Common):
    """Which steps of a stored trajectory carry the blame, in words and as a picture."""

    store: StorePath
    trajectory: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="ID", help="the trajectory's number")]
    safety: Path
    """A fitted safety model."""
    out: Path | None = None
    """The picture's file."""

    def run(self) -> int:
        from sidestep.cli.safety import explain

        return explain(**_options(self))


@dataclass(kw_only=True)
class Plan(Common):
    """From no label to a certified policy: rounds of asking, fitting and planning, then an audit on fresh rollouts.

    With --safety: plan once against this fitted safety model, and certify.
    Exit status: 0 every constraint is certified, 1 not certified or infeasible, 2 bad input, 3 labels are needed.
    """

    model: ModelReference
    safety: Path | None = None
    """Plan once against this fitted safety model (see `sidestep fit`), in place of a campaign."""
    constraint: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A tolerance: "none>=0.95", "severe<=0.01", "mild+<=0.05" (mild or worse). May be given several times; the best
    category in 95 of 100 without it."""
    rule: str | None = None
    """The rule that plays the expert: a name, or file.py:function; without it the model's own, or people."""
    people: bool = False
    """People label, although the model has a rule of its own."""
    categories: str | None = None
    """The scale on which people label, best first: "none < mild < severe" without it."""
    method: Literal["default", "gradient", "paper", "paper-mfge", "ppo"] = "default"
    """default: what works best; gradient: a network even where a finite model has an exact optimum; paper: PPO with
    the gradient through model and classifier (MBGE); paper-mfge: with the score function; ppo: no constraint."""
    seeds: int = 1
    """Policies trained at once, from this seed on (with --safety)."""
    out: Path = Path("runs/plan")
    """The run's folder."""
    campaign: Annotated[CampaignChanges, tyro.conf.arg(name="")]
    """Options of a campaign."""
    settings: Annotated[PlanChanges, tyro.conf.arg(name="")]
    """Options of the planner; --method sets those that are not given."""
    json: bool = False
    """Print result.json on standard output, and nothing else there."""

    def run(self) -> int:
        options = _options(self) | {"as_json": self.json}
        del options["json"]
        planning, campaign = (_given(options.pop(name)) for name in ("settings", "campaign"))
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise InputError(f"must lie between 1 and {MOST_SEEDS:,}, not {self.seeds}", place="--seeds")
        if self.safety is None and self.method != "ppo":
            from sidestep.cli.campaign import begin

            if self.seeds > 1:
                raise InputError("a campaign has one seed; give --seeds with --safety", place="--seeds")
            del options["safety"], options["seeds"]
            return begin(changes=campaign, planning=planning, **options)
        from sidestep.cli.plan import plan_once

        if campaign or self.categories:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in campaign) or "--categories"
            raise InputError("is of a campaign, and this plans once; leave it out", place=names)
        del options["categories"]
        return plan_once(changes=planning, **options)


@dataclass(kw_only=True)
class Resume(Common):
    """Go on with a run where it stopped, bit for bit.

    Exit status: 0 every constraint is certified, 1 not certified or infeasible, 2 bad input, 3 labels are needed.
    """

    folder: RunPath
    trust: Trust = False
    json: bool = False
    """Print result.json on standard output, and nothing else there."""

    def run(self) -> int:
        from sidestep.cli import campaign, plan
        from sidestep.runs.folder import Run

        run = Run.open(self.folder)
        kind = campaign if run.config["kind"] == "campaign" else plan
        with run.held():
            return kind.continue_run(run, self.quiet, self.json, self.trust)


@dataclass(kw_only=True)
class Certify(Common):
    """Audit a run's policy on fresh rollouts, labelled by the rule, or by people until it is decided.

    The run keeps a ledger of its audits. A further one shares the error with those before it, so it takes more to pass.
    Exit status: 0 certified, 1 not certified, 2 bad input, 3 labels are needed.
    """

    folder: RunPath
    rollouts: int | None = None
    """Fresh rollouts, 2,000 without it; at most so many where people label."""
    people: bool = False
    """People label, although there is a rule."""
    confidence: float | None = None
    """Probability with which all bounds of all audits of the run hold together; 0.95 without it."""
    trust: Trust = False
    json: bool = False
    """Print the certificate as JSON."""

    def run(self) -> int:
        from sidestep.cli.certify import certify
        from sidestep.runs.folder import AGAIN, Run

        options = _options(self) | {"seed": self.seed or None}
        with Run.open(self.folder).held(AGAIN):
            return certify(as_json=options.pop("json"), **options)


@dataclass(kw_only=True)
class Report(Common):
    """Write (or rewrite) the HTML report of a run, from what its folder holds."""

    folder: RunPath
    trust: Trust = False

    def run(self) -> int:
        from sidestep.cli.report import report

        return report(self.folder, self.trust)


@dataclass(kw_only=True)
class Export(Common):
    """Write a run's policy as a Python file that needs only NumPy."""

    folder: RunPath
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.py", help="the file to write")]
    trust: Trust = False

    def run(self) -> int:
        from sidestep.cli.report import export

        return export(self.folder, self.file, self.trust)


@dataclass(kw_only=True)
class Limits(Common):
    """The exact optimum of a finite model: without bounds, and with bounds on expected side effects.

    Exit status 1 says that no policy meets the bounds.
    """

    model: ModelReference
    constraint: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """At most so many steps of a category in expectation: "severe<=0", "mild+<=0.2" (mild or worse); or "penalty<=1".
    May be given several times; without it no side effects at all."""
    rule: str | None = None
    """The rule that says which steps are side effects; the model's own without it."""
    discount: float | None = None
    """Of the discounted figures; the model's own without it."""
    json: bool = False
    """Print the figures as JSON."""

    def run(self) -> int:
        from sidestep.cli.limits import limits

        return limits(self.model, self.constraint, self.rule, self.discount, self.json)


@dataclass(kw_only=True)
class Reproduce(Common):
    """Rerun the paper's experiments: numbers beside the printed ones and beside the exact limits."""

    what: Annotated[
        Literal["table1", "continuous", "curves", "nonmarkov-grid", "all"],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="WHAT", help="table1, continuous, curves, nonmarkov-grid, or all of them"),
    ]
    maps: Path | None = None
    """A folder with .bp and .nav files (also in its folders) to use in place of our maps."""
    quick: bool = False
    """A small version in minutes: fewer maps, seeds and epochs. Its files say so."""
    seeds: int | None = None
    """Runs of each method, counted up from --seed; five without it (two when quick, one for curves)."""
    epochs: int | None = None
    """Epochs of every method, in place of those of the experiment (see docs/reproduce.md)."""
    out: Path = Path("runs/reproduce")
    """Folder for jobs, tables and figures; finished jobs found there are not run again."""
    workers: int = 2
    """Jobs at a time, each in a process of its own; 1: all in this one."""
    json: bool = False
    """Print the tables as JSON, and nothing else."""

    def run(self) -> int:
        from sidestep.cli.reproduce import reproduce

        options = _options(self)
        return reproduce(as_json=options.pop("json"), **options)


COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": Demo,
    "models": Models,
    "check": Check,
    "collect": Collect,
    "label": Label,
    "fit": Fit,
    "explain": Explain,
    "plan": Plan,
    "resume": Resume,
    "certify": Certify,
    "report": Report,
    "export": Export,
    "limits": Limits,
    "reproduce": Reproduce,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and give its exit status.

    0 done (plan, resume, certify: every constraint is certified), 1 finished but not certified or infeasible, 2 bad
    input in one sentence on standard error, 3 labels are needed.
    """
    try:
        with _one_sentence_errors():
            given = sys.argv[1:] if arguments is None else arguments
            _check_words(given)
            command = _parse(given)
            _check_values(command)
        keep_compiled_programs()
        with own_output():
            status = int(command.run())
        sys.stdout.flush()
        return status
    except InputError as error:
        return _refused(error)
    except KeyboardInterrupt as stop:
        if fault := users_fault(stop):
            return _refused(fault)
        print("sidestep: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, e.g. `| head`
        _drop_output()
        return 0
    except OSError as error:
        if error.errno in NO_SPACE:
            _drop_output()
            return _refused(DiskFull(error.filename or "standard output"))
        return _refused(users_fault(error) or _about_file(error))
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich notices first
            _drop_output()
            return 0
        if fault := users_fault(stop):
            return _refused(fault)
        raise
    except Exception as error:
        fault = users_fault(error) or _about_memory(error)
        if fault is None:
            raise
        return _refused(fault)


def _refused(error: InputError) -> int:
    print(f"sidestep: {error}", file=sys.stderr)
    return 1 if isinstance(error, Infeasible) else 2


def _about_file(error: OSError) -> InputError:
    """A file or folder that the system will not open, make or write: a name that is too long, a missing permission."""
    place = None if error.filename is None else shortened(os.fsdecode(error.filename))
    return InputError(f"this does not work here: {error.strerror or error}", place=place)


def _about_memory(error: Exception) -> InputError | None:
    """Python and XLA each have their own way to say that memory does not suffice."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return InputError("the memory of this machine does not suffice for this; ask for less at a time")
    return None


def _check_words(arguments: list[str]) -> None:
    """What no option may be: empty (a variable of the shell that is not set, most likely), or with a zero byte."""
    for word, following in itertools.zip_longest(arguments, arguments[1:]):
        option, equals, value = word.partition("=")
        if option.startswith("--") and (following == "" or (equals and not value)):
            raise InputError("its value is empty; leave the option out or give one", place=f"option {option}")
        if "\0" in word:
            raise InputError("a zero byte cannot be part of an argument", place=ascii(shortened(word)))


def _check_values(values: Any) -> None:
    """Numbers that no command can use, wherever they stand among its options."""
    for field in fields(values):
        value, name = getattr(values, field.name), f"--{field.name.rstrip('_').replace('_', '-')}"
        if is_dataclass(value):
            _check_values(value)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise InputError(f"must be a finite number, not {number}", place=name)
            if isinstance(number, int) and not -LARGEST <= number <= LARGEST:
                raise InputError(f"must be at most {LARGEST:,} in size, not {shortened(str(number))}", place=name)
            if field.name == "seed" and number < 0:
                raise InputError(f"must be a whole number from 0 on, not {number}", place=name)


def _drop_output() -> None:
    """What is still to be printed goes nowhere, since it cannot go where it should."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _options(command: Any) -> dict[str, Any]:
    """The command's fields as keywords of the function that does it."""
    return {field.name.rstrip("_"): getattr(command, field.name) for field in fields(command)}


def _parse(arguments: list[str]) -> Any:
    from sidestep import __version__

    if arguments == ["--version"]:
        print(f"sidestep {__version__}")
        raise SystemExit(0)
    return tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="sidestep",
        description=DESCRIPTION,
        args=arguments or ["--help"],
        config=(tyro.conf.FlagCreatePairsOff,),
    )


@contextlib.contextmanager
def _one_sentence_errors() -> Iterator[None]:
    """The parser draws a box around what is wrong with an option; we say it in one sentence."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            yield
    except SystemExit as stop:
        if stop.code != 2:
            raise
        raise InputError(_sentence(box.getvalue())) from None


def _sentence(box: str) -> str:
    """What the parser's box says, without its frame, headings and help texts."""
    bare = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip("│╭╮╰╯─ \t") for line in bare.splitlines()]
    text = re.sub(r"\s*For full helptext, (run|see).*", "", " ".join(line for line in lines if line))
    text = re.sub(r"invalid literal for int\(\) with base 10:", "expected a whole number, not", text)
    text = re.sub(r"could not convert string to float:", "expected a number, not", text)
    text = re.sub(
        r"no type matching .*? could be instantiated.*: (expected an? [^:]*?)(?= Argument helptext|$)", r"\1", text
    )
    text = re.sub(
        r"no type matching .* could be instantiated from \[(.*?)\]\. .*?(?= Argument helptext|$)",
        r"expected numbers, not \1",
        text,
    )
    if choice := re.search(r"invalid choice ('.*?') for argument '(\S+)'\. Expected one of \((.*?)\)", text):
        given, option, choices = choice.groups()
        listed = ", ".join(name for name in sorted(re.findall(r"'(.*?)'", choices)) if name != "None")
        place = f"option {option}" if option.startswith("--") else option.upper()
        return f"{place}: expected one of {listed}, not {given}; see --help"
    for pattern, sentence in (
        (r"Missing from (sidestep[\w ]*):\s+(\S+)", r"\1: \2 is missing; see \1 --help"),
        (r"Error parsing (\S+): (.*?)(?: Argument helptext:.*)?$", r"option \1: \2; see --help"),
        (
            r"Unrecognized options: ([^\s,]+).*?Available subcommands: ([\w, -]*\w)",
            r"unknown option or command '\1'; the commands are \2",
        ),
        (r"Unrecognized options: ([^\s,]+).*?Perhaps you meant: (--[\w-]+)", r"unknown option '\1'; did you mean \2?"),
        (r"Unrecognized options: ([^\s,]+)", r"unknown option or argument '\1'; see --help"),
        (r"Missing value for argument '(\S+)'", r"option \1: its value is missing; see --help"),
    ):
        found = re.search(pattern, text)
        if found:
            return found.expand(sentence)
    return f"{text}; see --help"
