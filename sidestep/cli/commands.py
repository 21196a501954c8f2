"""What can be asked for: one record per command. Light on purpose, since `--help` loads it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from sidestep.campaign.config import MOST_ROLLOUTS, CampaignConfig
from sidestep.cli.arguments import Given, handed_on, positional, required
from sidestep.core.options import Option, option, options_of
from sidestep.planning.options import plan_defaults, plan_options
from sidestep.runs.records import MOST_SEEDS
from sidestep.safety.config import fit_settings


def _with_default(help: str, default: object) -> str:
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    return help if default is None else f"{help} (default: {shown})"


def _of_fit(name: str, help: str) -> str:
    """The help of an option of `sidestep fit`, with its defaults."""
    usual, others = (getattr(fit_settings(kind), name) for kind in ("hazard", "classifier"))
    shown = usual if usual == others else f"{usual}; {others} for classifier, markov and share"
    return f"{help} (default: {shown})"


MODEL = (
    "a built-in name (see `sidestep models`), a path to an .rddl, .bp or .nav file, domain.rddl:instance.rddl, or "
    "file.py:object; options follow a question mark, as in hvac?rooms=24"
)
STORE = "a label store: its file, or the postgresql:// URL of one on a server (docs/labels.md)"
SEED = "Every random number of the command follows from this one."
QUIET = "Print the result and nothing else."
JSON = "Print result.json on standard output, and nothing else there."
CLUSTER = (
    "Who does the jobs: local, processes on this machine; or the address of a Dask scheduler, such as "
    "tcp://host:8786 (docs/cluster.md). Without it this process, one after another."
)
METHODS = ("default", "gradient", "paper", "paper-mfge")  # that know constraints
WORKERS = "Processes of a local cluster; one per core without it."
TRUST = "Run Python code that came with the run's folder; your own runs do not need it (docs/trust.md)."
ASKED, HOW, RUN, PRINTED = "what is asked", "how", "the run", "what is printed"  # headings of --help
OF_CAMPAIGN = "more of a campaign"
OF_PLANNER = (
    "the planner; these defaults are of the default method on a differentiable model, other methods have others"
)
USUAL = {"labels": ASKED, "marks": ASKED, "rounds": HOW}  # options of a campaign that --help shows
CAMPAIGN = {
    name: (kind, replace(told, help=_with_default(told.help, getattr(CampaignConfig(), name)), **shown))
    for name, (kind, told) in options_of(CampaignConfig).items()
    for shown in [{"group": USUAL[name]} if name in USUAL else {"rare": True}]
}
PLAN_DEFAULTS = plan_defaults()
PLANNING = {
    name: (kind, Option(_with_default(help, PLAN_DEFAULTS[name]), rare=True))
    for name, (kind, help) in plan_options().items()
}


class Command(Protocol):
    does: ClassVar[str]  # the module of this folder and its function that carry it out


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The main job on Navigation, from no label to a certified policy and its report, in minutes."""

    does: ClassVar[str] = "plan:demo"
    out: Path = option(Path("runs/demo"), "The run's folder; a new one beside it if it is taken.")
    quick: bool = option(False, "A tiny one that shows every step; its policy is not expected to be certified.")
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
    store: str = required("The store, a file or a postgresql:// URL; it is made if it is not there.")
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
    store: str = positional("STORE", STORE)
    rule: str | None = option(None, "A rule's name, or file.py:function; the model's own without it.")
    model: str | None = option(None, "The model of the store, where its name alone does not say it (a file, options).")
    annotator: str = option("", "Who labels; without it the rule's name.")
    every: bool = option(
        False, "Label every trajectory anew, or export every one, and not only those that need a label."
    )
    marks: bool = option(False, "The rule also marks at which step each severity was reached.")
    verify: bool = option(False, "Label nothing, and check that every trajectory and label is still what was put in.")
    import_: str | None = option(
        None,
        "Read trajectories with labels from CSV (one row per step), NPZ or Parquet, or labels alone from CSV; or all "
        "of another store, a .store file or a postgresql:// URL.",
    )
    export: str | None = option(
        None,
        "Write the trajectories that need labels, or with --every all of them; a name that ends in .labels.csv gets "
        "the whole log of labels, another store (.store or postgresql://) gets everything.",
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
    store: str = positional("STORE", STORE)
    out: Path = required("The safety model's file (.safetensors); a reliability plot is put beside it.")
    kind: Literal["hazard", "families", "classifier", "markov", "share"] | None = option(
        None,
        "hazard (the default): a hazard for every step; families: hazards and counted events side by side, which need "
        "fewer labels and may be put into words; classifier: the paper's recurrent classifier; markov: of "
        "single steps; share: of single steps and of the share of them.",
    )
    layers: int | None = option(None, "Recurrent layers; by the kind without it.")
    units: int | None = option(None, "Units of each layer; by the kind without it.")
    dropout: float | None = option(None, "Share of units dropped in training; by the kind without it.")
    members: int | None = option(None, "Models; more than one make an ensemble. (default: 1)")
    start: Path | None = option(None, "Continue from this fitted model instead of a fresh one.")
    resolve: Literal["newest", "majority"] = option(
        "majority",
        "Which label counts where several annotators gave one: what most say (of equals the worse), or the last.",
    )
    marks: bool | None = option(
        None, "Learn also from the steps at which severities were reached, where they are marked; yes, without either."
    )
    slack: int | None = option(None, _of_fit("slack", "A marked step may be off by so many steps, either way."))
    steps: int | None = option(None, _of_fit("steps", "Minibatches at most."))
    batch: int | None = option(None, _of_fit("batch", "Trajectories in a minibatch."))
    learning_rate: float | None = option(None, _of_fit("learning_rate", "Adam's step size."))
    balance: float | None = option(
        None, _of_fit("balance", "Draw rare categories more often: 0 as they come, 1 all equally often.")
    )
    sparsity: float | None = option(
        None,
        _of_fit(
            "sparsity",
            "Pull towards reading few entries of state and action; 0.01 helps where side effects depend on few.",
        ),
    )
    average: float | None = option(
        None, _of_fit("average", "Keep a running mean of the parameters that forgets by this factor; 0: none.")
    )
    held_out: float | None = option(
        None, _of_fit("held_out", "Share kept for early stopping, calibration and the report.")
    )
    seed: int = option(0, SEED, least=0)
    quiet: bool = option(False, QUIET)
    json: bool = option(False, "Print the report as JSON.")


@dataclass(frozen=True, kw_only=True)
class Explain:
    """Which steps of a stored trajectory carry the blame, in words and as a picture."""

    does: ClassVar[str] = "safety:explain"
    store: str = positional("STORE", STORE)
    trajectory: int = positional("ID", "the trajectory's number")
    safety: Path = required("A fitted safety model.")
    out: Path | None = option(None, "The picture's file.")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """From no label to a certified policy: rounds of asking, fitting and planning, then an audit on fresh rollouts.

    With --safety: plan once against this fitted safety model, and certify.
    Exit status: 0 every constraint is certified, 1 not certified or infeasible, 2 bad input, 3 labels are needed.
    """

    does: ClassVar[str] = "plan:plan"
    model: str = positional("MODEL", MODEL)
    constraint: tuple[str, ...] = option(
        (),
        'A tolerance: "none>=0.95", "severe<=0.01", "mild+<=0.05" (mild or worse). May be given several times; the '
        "best category in 95 of 100 without it.",
        group=ASKED,
    )
    rule: str | None = option(
        None,
        "The rule that plays the expert: a name, or file.py:function; without it the model's own, or people.",
        group=ASKED,
    )
    people: bool = option(False, "People label, although the model has a rule of its own.", group=ASKED)
    serve: bool = option(
        False, "Open the page on which people label, and go on by itself; see `sidestep serve`.", group=ASKED
    )
    categories: str | None = option(
        None, 'The scale on which people label, best first: "none < mild < severe" without it.', group=ASKED, rare=True
    )
    safety: Path | None = option(
        None, "Plan once against this fitted safety model (see `sidestep fit`), in place of a campaign.", group=HOW
    )
    method: Literal["default", "gradient", "paper", "paper-mfge", "ppo"] = option(
        "default",
        "default: what works best; gradient: a network even where a finite model has an exact optimum; paper: PPO with "
        "the gradient through model and classifier (MBGE); paper-mfge: with the score function; ppo: no constraint.",
        group=HOW,
    )
    seeds: int = option(
        1,
        "Policies trained at once, from this seed on (with --safety).",
        least=1,
        most=MOST_SEEDS,
        group=HOW,
        rare=True,
    )
    store: str | None = option(
        None,
        "Where the labels are: a file, or the postgresql:// URL of a team's store; the run's own without it.",
        group=RUN,
    )
    out: Path = option(Path("runs/plan"), "The run's folder.", group=RUN)
    seed: int = option(0, SEED, least=0, group=RUN)
    config: Path | None = option(
        None,
        "Options from a file: TOML with their names, or the config.json of a run; what is given here comes first.",
        group=RUN,
    )
    quiet: bool = option(False, QUIET, group=PRINTED)
    json: bool = option(False, JSON, group=PRINTED)
    campaign: Given = handed_on(OF_CAMPAIGN, CAMPAIGN)
    planning: Given = handed_on(OF_PLANNER, PLANNING)


@dataclass(frozen=True, kw_only=True)
class Serve:
    """The page on which people label; with a run's folder, the campaign goes on by itself behind it.

    Everything that is answered is in the label store at once. Stop it with Ctrl-C, and start it again at any time.
    """

    does: ClassVar[str] = "serve:serve"
    place: str = positional("DIR_OR_STORE", f"a run's folder, or {STORE}")
    port: int = option(8765, "Where it listens; the next free one if it is taken, any with 0.", least=0, most=65535)
    host: str = option("127.0.0.1", "Listen beyond this machine, as on 0.0.0.0; needs --annotators.")
    address: str = option("", "The address by which others reach the page, such as https://label.example.org.")
    annotators: str = option("", "Who labels beside you, such as ann,ben: each gets a personal link.")
    overlap: int = option(1, "People who answer each question.", least=1, most=100)
    lease: float = option(300.0, "Seconds for which a question is kept for the one who has it.", least=5, most=86400)
    checks: int = option(
        25,
        "One question in so many is a blind check, asked again or of a pinned example; 0: none.",
        least=0,
        most=10**6,
    )
    guidelines: Path | None = option(None, "A Markdown file that annotators can read beside the question.")
    question: str = option("How bad is the worst side effect of this trajectory?", "What is asked of every trajectory.")
    plane: str = option("", "Draw these two entries of the state as a path on a plane, as in x,y.")
    model: str | None = option(None, "The model of a store, where its name alone does not say it (a file, options).")
    trust: bool = option(False, TRUST)
    quiet: bool = option(False, "Print the links and nothing else, and open no browser.")


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Continue a run where it stopped, bit for bit.

    Exit status: 0 every constraint is certified, 1 not certified or infeasible, 2 bad input, 3 labels are needed.
    """

    does: ClassVar[str] = "plan:resume"
    folder: Path = positional("DIR", "a run's folder")
    wait: bool = option(False, "Where people label: stay, and go on when Enter is pressed.")
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
    audit: Literal["auto", "plain", "stratified"] = option(
        "auto",
        "plain: by labels alone; stratified: what the run's safety model calls costly counts as costly, and labels go "
        "to the rest; auto: stratified where people label and there is a safety model.",
    )
    signed_by: str | None = option(
        None,
        "Your name, if you have read the pattern that the run has learned (the report shows it) and stand for it: a "
        "million rollouts are judged by the pattern, and nobody labels. The certificate rests on your signature.",
    )
    known: int | None = option(
        None,
        "Cases of harm that are known, hidden among the questions to people, so that the certificate holds although "
        "people err; 40 without it, 0 takes their labels for the truth.",
        least=0,
        most=10_000,
    )
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
    """Write a run's policy as a Python file that needs only NumPy, or as ONNX."""

    does: ClassVar[str] = "report:export"
    folder: Path = positional("DIR", "a run's folder")
    file: Path = positional("FILE", "the file to write: policy.py or policy.onnx")
    trust: bool = option(False, TRUST)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What was run: the runs below a folder, with what came of them."""

    does: ClassVar[str] = "overview:runs"
    folder: Path = option(Path("runs"), "The folder to look in.")
    json: bool = option(False, "Print them as JSON.")


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Two runs side by side: what was asked where they differ, and what came of it."""

    does: ClassVar[str] = "overview:compare"
    first: Path = positional("A", "a run's folder")
    second: Path = positional("B", "another run's folder")
    every: bool = option(False, "Also what they have in common.")
    json: bool = option(False, "Print them as JSON.")


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Print a script by which a shell completes commands and options.

    bash:  eval "$(sidestep completion bash)"                                       in ~/.bashrc
    zsh:   eval "$(sidestep completion zsh)"                                        in ~/.zshrc, after compinit
    fish:  sidestep completion fish > ~/.config/fish/completions/sidestep.fish      once
    """

    does: ClassVar[str] = "completion:completion"
    shell: Literal["bash", "zsh", "fish"] = positional("SHELL", "bash, zsh or fish")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The exact optimum of a finite model, without bounds and with bounds on its side effects.

    Once for runs that go on until they reach an end, once for runs of the model's horizon.
    Exit status 1 says that no policy meets the bounds.
    """

    does: ClassVar[str] = "limits:limits"
    model: str = positional("MODEL", MODEL)
    constraint: tuple[str, ...] = option(
        (),
        'At most so many steps of a category in expectation, or so large a chance of a run with one: "severe<=0", '
        '"mild+<=0.2" (mild or worse), "none>=0.95"; or "penalty<=1". May be given several times; without it no side '
        "effects at all.",
    )
    rule: str | None = option(None, "The rule that says which steps are side effects; the model's own without it.")
    discount: float | None = option(None, "Of the discounted figures; the model's own without it.", above=0, below=1)
    json: bool = option(False, "Print the figures as JSON.")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The price of safety: one certified policy per tolerance and seed, with labels shared between the tolerances.

    The same command goes on where it was stopped. Exit status 1 says that not every point is certified.
    """

    does: ClassVar[str] = "sweep:sweep"
    model: str = positional("MODEL", MODEL)
    tolerances: str = required('One constraint with several bounds: "none>=0.9,0.95,0.99".')
    out: Path = required("The folder for the frontier and all runs.")
    constraint: tuple[str, ...] = option(
        (), "A further constraint that holds at every point. May be given several times."
    )
    rule: str | None = option(None, "The rule that labels: a name, or file.py:function; without it the model's own.")
    methods: tuple[str, ...] = option(
        (), f"A method of `sidestep plan`, one of {', '.join(METHODS)}. May be given several times."
    )
    models: tuple[str, ...] = option(
        (), "A further model. Each model then has its frontier in a folder of its own. May be given several times."
    )
    seeds: int = option(1, "Runs at each tolerance, counted up from --seed.", least=1, most=MOST_SEEDS)
    cluster: str | None = option(None, CLUSTER)
    workers: int | None = option(None, WORKERS, least=1, most=256)
    seed: int = option(0, SEED, least=0)
    quiet: bool = option(False, QUIET)
    json: bool = option(
        False, "Print frontier.json on standard output, and nothing else there; a list of them for several models."
    )
    campaign: Given = handed_on(OF_CAMPAIGN, CAMPAIGN)
    planning: Given = handed_on(OF_PLANNER, PLANNING)


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
    cluster: str | None = option(None, CLUSTER)
    workers: int | None = option(None, WORKERS, least=1, most=256)
    seed: int = option(0, SEED, least=0)
    quiet: bool = option(False, QUIET)
    json: bool = option(False, "Print the tables as JSON, and nothing else.")


GROUPS: dict[str, tuple[type[Command], ...]] = {
    "begin here": (Demo, Models, Check),
    "the main job": (Plan, Serve, Resume, Certify, Report, Export),
    "its steps": (Collect, Label, Fit, Explain),
    "many runs": (Runs, Compare, Sweep),
    "more": (Limits, Reproduce, Completion),
}


def name_of(command: type[Command]) -> str:
    return command.__name__.lower()


COMMANDS: dict[str, type[Command]] = {name_of(one): one for group in GROUPS.values() for one in group}
