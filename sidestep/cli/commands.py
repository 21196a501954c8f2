"""What can be asked for: one record per command. Light on purpose, since `--help` loads it."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from sidestep.campaign.config import MOST_ROLLOUTS, CampaignConfig
from sidestep.cli.arguments import Given, handed_on, positional, required
from sidestep.core.options import option, options_of
from sidestep.planning.options import plan_options
from sidestep.runs.records import MOST_SEEDS

MODEL = (
    "a built-in name (see `sidestep models`), a path to an .rddl, .bp or .nav file, domain.rddl:instance.rddl, or "
    "file.py:object; options follow a question mark, as in hvac?rooms=24"
)
SEED = "Every random number of the command follows from this one."
QUIET = "Print the result and nothing else."
JSON = "Print result.json on standard output, and nothing else there."
TRUST = "Run Python code that came with the run's folder; your own runs do not need it (docs/trust.md)."
CAMPAIGN = {
    name: (kind, f"{told.help} (default: {getattr(CampaignConfig(), name)})")
    for name, (kind, told) in options_of(CampaignConfig).items()
}


class Command(Protocol):
    does: ClassVar[str]  # the module of this folder and its function that carry it out


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The main job on Navigation, from no label to a certified policy and its report, in minutes."""

    does: ClassVar[str] = "plan:demo"
    out: Path = option(Path("runs/demo"), "The run's folder; a new one beside it if it is taken.")
    seed: int = option(0, SEED, least=0)
    quiet: bool = option(False, QUIET)


@dataclass(frozen=True, kw_only=True)
class Models:
    """List the built-in models, one line each."""

    does: ClassVar[str] = "models:list_models"


@dataclass(frozen=True, kw_only=True)
class Check:
    """Is this model usable, differentiable, and if not, why?"""

    does: ClassVar[str] = "check:check"
    model: str = positional("MODEL", MODEL)
    seed: int = option(0, SEED, least=0)


@dataclass(frozen=True, kw_only=True)
class Collect:
    """Roll out trajectories and put them into a label store."""

    does: ClassVar[str] = "labels:collect"
    model: str = positional("MODEL", MODEL)
    store: Path = required("The store's file; it is made if it is not there.")
    policy: str = option(
        "explore",
        "uniform: independent random actions; explore: random behaviour that covers much; or a run's folder.",
    )
    count: int = option(1000, "How many trajectories.", least=1, most=10**8)
    horizon: int | None = option(
        None, "Steps of each at most; the model's own horizon without it.", least=1, most=10**6
    )
    rule: str | None = option(None, "The rule whose categories the store will hold, if it is not the model's own.")
    seed: int = option(0, SEED, least=0)
    quiet: bool = option(False, QUIET)


@dataclass(frozen=True, kw_only=True)
class Label:
    """Label the trajectories of a store by a rule, or move trajectories and labels in and out of files."""

    does: ClassVar[str] = "labels:label"
    store: Path = positional("STORE", "a label store's file")
    rule: str | None = option(None, "A rule's name, or file.py:function; the model's own without it.")
    model: str | None = option(None, "The model of the store, where its name alone does not say it (a file, options).")
    annotator: str = option("", "Who labels; without it the rule's name.")
    every: bool = option(False, "Label every trajectory anew, not only those without a label.")
    verify: bool = option(False, "Label nothing, and check that every trajectory and label is still what was put in.")
    import_: Path | None = option(
        None, "Read trajectories with labels from CSV (one row per step), NPZ or Parquet, or labels alone from CSV."
    )
    export: Path | None = option(
        None, "Write trajectories with their labels; a name that ends in .labels.csv gets the whole log of labels."
    )
    next: int = option(
        0,
        "Label nothing, and list this many unlabelled trajectories that are most worth a label, by --safety.",
        least=0,
    )
    safety: Path | None = option(None, "The fitted safety model that --next asks.")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Learn the pattern behind a store's labels, and say how good the safety model is."""

    does: ClassVar[str] = "safety:fit_store"
    store: Path = positional("STORE", "a label store's file")
    out: Path = required("The safety model's file (.safetensors); a reliability plot is put beside it.")
    kind: Literal["hazard", "classifier", "markov", "share"] | None = option(
        None,
        "hazard (the default): a hazard for every step; classifier: the paper's recurrent classifier; markov: of "
        "single steps; share: of single steps and of the share of them.",
    )
    layers: int | None = option(None, "Recurrent layers.")
    units: int | None = option(None, "Units of each.")
    dropout: float | None = option(None, "Share of units dropped in training.")
    members: int | None = option(None, "Models; more than one make an ensemble.")
    start: Path | None = option(None, "Continue from this fitted model instead of a fresh one.")
    resolve: Literal["newest", "majority"] = option("newest", "Which label counts where a trajectory has several.")
    steps: int | None = option(None, "Minibatches at most.")
    batch: int | None = option(None, "Trajectories in a minibatch.")
    learning_rate: float | None = option(None, "Adam's step size.")
    balance: float | None = option(None, "Draw rare categories more often: 0 as they come, 1 all equally often.")
    sparsity: float | None = option(
        None,
        "Pull towards reading few entries of state and action; 0.01 helps where side effects depend on few of many.",
    )
    average: float | None = option(
        None, "Keep a running mean of the parameters that forgets by this factor, such as 0.98."
    )
    held_out: float | None = option(None, "Share kept for early stopping, calibration and the report.")
    seed: int = option(0, SEED, least=0)
    quiet: bool = option(False, QUIET)
    json: bool = option(False, "Print the report as JSON.")


@dataclass(frozen=True, kw_only=True)
class Explain:
    """Which steps of a stored trajectory carry the blame, in words and as a picture."""

    does: ClassVar[str] = "safety:explain"
    store: Path = positional("STORE", "a label store's file")
    trajectory: int = positional("ID", "the trajectory's number")
    safety: Path = required("A fitted safety model.")
    out: Path | None = option(None, "The picture's file.")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """From no label to a certified policy: rounds of asking, fitting and planning, then an audit on fresh rollouts.

    With --safety: plan once against this fitted safety model, and certify.
    Exit status: 0 every constraint is certified, 1 not certified or infeasible, 2 bad input, 3 labels are needed.
    """

    does: ClassVar[str] = "plan:begin"
    model: str = positional("MODEL", MODEL)
    safety: Path | None = option(
        None, "Plan once against this fitted safety model (see `sidestep fit`), in place of a campaign."
    )
    constraint: tuple[str, ...] = option(
        (),
        'A tolerance: "none>=0.95", "severe<=0.01", "mild+<=0.05" (mild or worse). May be given several times; the '
        "best category in 95 of 100 without it.",
    )
    rule: str | None = option(
        None, "The rule that plays the expert: a name, or file.py:function; without it the model's own, or people."
    )
    people: bool = option(False, "People label, although the model has a rule of its own.")
    categories: str | None = option(
        None, 'The scale on which people label, best first: "none < mild < severe" without it.'
    )
    method: Literal["default", "gradient", "paper", "paper-mfge", "ppo"] = option(
        "default",
        "default: what works best; gradient: a network even where a finite model has an exact optimum; paper: PPO with "
        "the gradient through model and classifier (MBGE); paper-mfge: with the score function; ppo: no constraint.",
    )
    seeds: int = option(1, "Policies trained at once, from this seed on (with --safety).", least=1, most=MOST_SEEDS)
    out: Path = option(Path("runs/plan"), "The run's folder.")
    seed: int = option(0, SEED, least=0)
    quiet: bool = option(False, QUIET)
    json: bool = option(False, JSON)
    campaign: Given = handed_on("options of a campaign", CAMPAIGN)
    planning: Given = handed_on("options of the planner; --method sets those that are not given", plan_options())


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Continue a run where it stopped, bit for bit.

    Exit status: 0 every constraint is certified, 1 not certified or infeasible, 2 bad input, 3 labels are needed.
    """

    does: ClassVar[str] = "plan:resume"
    folder: Path = positional("DIR", "a run's folder")
    trust: bool = option(False, TRUST)
    quiet: bool = option(False, QUIET)
    json: bool = option(False, JSON)


@dataclass(frozen=True, kw_only=True)
class Certify:
    """Audit a run's policy on fresh rollouts, labelled by the rule, or by people until it is decided.

    The run keeps a ledger of its audits. A further one shares the error with those before it, so it takes more to pass.
    Exit status: 0 certified, 1 not certified, 2 bad input, 3 labels are needed.
    """

    does: ClassVar[str] = "certify:certify"
    folder: Path = positional("DIR", "a run's folder")
    rollouts: int | None = option(
        None, "Fresh rollouts, 2,000 without it; at most so many where people label.", least=1, most=MOST_ROLLOUTS
    )
    people: bool = option(False, "People label, although there is a rule.")
    confidence: float | None = option(
        None,
        "Probability with which all bounds of all audits of the run hold together; 0.95 without it.",
        least=0.5,
        below=1,
    )
    seed: int | None = option(None, "The fresh rollouts follow from this one; the run's own seed without it.", least=0)
    trust: bool = option(False, TRUST)
    json: bool = option(False, "Print the certificate as JSON.")


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write (or rewrite) the HTML report of a run, from what its folder holds."""

    does: ClassVar[str] = "report:report"
    folder: Path = positional("DIR", "a run's folder")
    trust: bool = option(False, TRUST)


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a run's policy as a Python file that needs only NumPy."""

    does: ClassVar[str] = "report:export"
    folder: Path = positional("DIR", "a run's folder")
    file: Path = positional("FILE.py", "the file to write")
    trust: bool = option(False, TRUST)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The exact optimum of a finite model: without bounds, and with bounds on expected side effects.

    Exit status 1 says that no policy meets the bounds.
    """

    does: ClassVar[str] = "limits:limits"
    model: str = positional("MODEL", MODEL)
    constraint: tuple[str, ...] = option(
        (),
        'At most so many steps of a category in expectation: "severe<=0", "mild+<=0.2" (mild or worse); or '
        '"penalty<=1". May be given several times; without it no side effects at all.',
    )
    rule: str | None = option(None, "The rule that says which steps are side effects; the model's own without it.")
    discount: float | None = option(None, "Of the discounted figures; the model's own without it.", above=0, below=1)
    json: bool = option(False, "Print the figures as JSON.")


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Rerun the paper's experiments: numbers beside the printed ones and beside the exact limits."""

    does: ClassVar[str] = "reproduce:reproduce"
    what: Literal["table1", "continuous", "curves", "nonmarkov-grid", "all"] = positional(
        "WHAT", "table1, continuous, curves, nonmarkov-grid, or all of them"
    )
    maps: Path | None = option(
        None, "A folder with .bp and .nav files (also in its folders) to use in place of the built-in maps."
    )
    quick: bool = option(False, "A small version in minutes: fewer maps, seeds and epochs. Its files say so.")
    seeds: int | None = option(
        None,
        "Runs of each method, counted up from --seed; five without it (two when quick, one for curves).",
        least=1,
        most=1000,
    )
    epochs: int | None = option(
        None,
        "Epochs of every method, in place of those of the experiment (see docs/reproduce.md).",
        least=1,
        most=10**7,
    )
    out: Path = option(
        Path("runs/reproduce"), "Folder for jobs, tables and figures; finished jobs found there are not run again."
    )
    workers: int = option(2, "Jobs at a time, each in a process of its own; 1: all in this one.", least=1, most=256)
    seed: int = option(0, SEED, least=0)
    quiet: bool = option(False, QUIET)
    json: bool = option(False, "Print the tables as JSON, and nothing else.")


COMMANDS: dict[str, type[Command]] = {
    one.__name__.lower(): one
    for one in (
        Demo,
        Models,
        Check,
        Collect,
        Label,
        Fit,
        Explain,
        Plan,
        Resume,
        Certify,
        Report,
        Export,
        Limits,
        Reproduce,
    )
}
