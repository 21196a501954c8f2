"""Inputs of every kind that a user may give, broken in thousands of ways: each ends well or in one sentence.

The `runs` of a campaign, and files of weights, are tried in test_fuzz_runs.py.
"""

import random
import sqlite3
import string
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fuzz_helpers import ODD_TEXTS, command, flipped, fuzz, mutated
from store_helpers import SPEC, random_trajectories, steps
from test_bad_input import INSTANCE, TANK

from sidestep.cli.limits import parse_limit
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import InputError
from sidestep.core.model import UniformPolicy, rollout
from sidestep.labels.rules import find_rule, load_rule
from sidestep.labels.store import Store
from sidestep.labels.transfer import export_labels, export_trajectories, import_file
from sidestep.models import load_model

pytestmark = pytest.mark.filterwarnings("ignore")

# Constraints.

CONSTRAINTS = ("none>=0.95", "severe<=0.01", "mild+<=5%", "none >= .5", "mild <= 1e-3", "penalty<=1", "severe<=0")
SCALES = ("none < mild < severe", "safe < unsafe", "a<b<c<d<e", "ok < not ok")
PARTS = ("<=", ">=", "<", ">", "=", "+", "%", "none", "mild", "severe", "0.95", "1", ".", "e5", "e-400", *ODD_TEXTS)


def test_constraints():
    rule = find_rule(None, load_model("boxpushing?map=1"))
    assert rule is not None

    def act(dice):
        scale = Scale.parse(mutated(dice.choice(SCALES), dice, most=dice.choice((0, 0, 0, 2))))
        names = [dice.choice(scale.categories) for _ in range(dice.randint(1, 2))]
        texts = [dice.choice(CONSTRAINTS).replace("none", name).replace("severe", name) for name in names]
        texts = [mutated(text, dice, PARTS, dice.choice((0, 1, 3))) for text in texts]
        if dice.random() < 0.2:
            return parse_limit(texts[0], rule)
        return parse_constraints(texts, scale)

    fuzz("constraints and scales", 200, act)


# References to models.

REFERENCES = (
    "navigation",
    "hvac?rooms=4",
    "boxpushing?map=2",
    "driving?horizon=9",
    "town.nav",
    "a.rddl:b.rddl",
    "m.py:f",
)
REFERENCE_PARTS = (
    "?",
    "&",
    "=",
    ":",
    ".rddl",
    ".bp",
    ".nav",
    ".py",
    "horizon",
    "rooms",
    "map",
    "relaxed",
    "%00",
    *ODD_TEXTS,
)


def test_references(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.rddl").mkdir()
    (tmp_path / "folder.py").mkdir()

    def act(dice):
        text = mutated(dice.choice(REFERENCES), dice, REFERENCE_PARTS)
        if dice.random() < 0.1:
            text = dice.choice(
                ("folder.rddl", "folder.py:x", "/dev/null.rddl", "x" * 5000 + ".rddl", "a/" * 3000 + "m.nav")
            )
        try:
            return load_model(text) and None
        except InputError:
            return command("check", text)

    fuzz("MODEL references", 60, act)


# RDDL and maps.

RDDL_PARTS = (
    ";",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "=",
    "==",
    "=>",
    "<=>",
    "'",
    "?p",
    "@p1",
    "^",
    "~",
    "|",
    "//",
    "sum_{",
    "max_{",
    "Normal(",
    "Bernoulli(",
    "Discrete(",
    "if (",
    " then ",
    " else ",
    "pos-inf",
    "real",
    "int",
    "bool",
    "default",
    "water",
    "pump",
    "valve(p1)",
    "0.0",
    "-1",
    "1e400",
    "/ 0",
    "(" * 500,
    "[" * 2000,
    "-" * 3000,
    *ODD_TEXTS,
)


def test_rddl(tmp_path):
    path = tmp_path / "tank.rddl"

    def act(dice):
        path.write_text(mutated(TANK + INSTANCE, dice, RDDL_PARTS, 4), encoding="utf-8", errors="surrogateescape")
        if dice.random() < 0.05:
            path.write_bytes(flipped(path.read_bytes(), dice))
        return load_model(str(path)) and None

    fuzz("RDDL texts", 60, act)


MAPS = {".bp": "S..F.\n.B@..\nx...G\n", ".nav": "S..@\n.X.H\n...G\n"}


def test_maps(tmp_path):
    def act(dice):
        ending = dice.choice(sorted(MAPS))
        path = tmp_path / f"map{ending}"
        text = mutated(MAPS[ending], dice, (*"SGBxX.F@H\n\r\t", *ODD_TEXTS))
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        if dice.random() < 0.2:
            path.write_bytes(flipped(path.read_bytes(), dice))
        return load_model(str(path)) and None

    fuzz("grid maps", 100, act)


# Python models and rules.

MODEL = """\
import jax, jax.numpy as jnp
from sidestep.core.model import Space, Spec, Variable

class Walk:
    spec = Spec("walk", Space((Variable("x", size=2),)), Space((Variable("way", low=-1.0, high=1.0),)), 4, ends=False)

    def reset(self, key):
        return jnp.zeros(2)

    def step(self, state, action, key):
        return state + action[0], -jnp.sum(jnp.abs(state)), jnp.asarray(False)

    def action_bounds(self, state):
        return -jnp.ones(1), jnp.ones(1)

model = Walk()
"""
MODEL_CHANGES = (
    (
        "jnp.zeros(2)",
        (
            "jnp.zeros(3)",
            "jnp.zeros((1, 2))",
            "0.0",
            "None",
            "[0, 0]",
            "jnp.zeros(2, int)",
            "'x'",
            "state",
            "jnp.full(2, jnp.nan)",
        ),
    ),
    (
        "jnp.asarray(False)",
        ("False", "jnp.asarray(0.0)", "jnp.zeros(2, bool)", "None", "state[0] > 1", "(state[0] > 1) * 1"),
    ),
    (
        "state + action[0]",
        (
            "state + action",
            "action",
            "state * jnp.inf",
            "jnp.log(state - 1)",
            "state / 0",
            "state[0]",
            "state.astype(int)",
            "state if state[0] > 0 else -state",
            "float(state[0])",
            "exit(3)",
            "self.reset(key) + self.x",
        ),
    ),
    (
        "-jnp.sum(jnp.abs(state))",
        ("state", "jnp.nan", "jnp.sum(state) / 0.0", "'1'", "1", "None", "jnp.exp(1e9 * jnp.sum(state) + 1e9)"),
    ),
    (
        "-jnp.ones(1), jnp.ones(1)",
        ("jnp.ones(1), -jnp.ones(1)", "jnp.ones(1)", "jnp.nan, 1", "-jnp.ones(2), jnp.ones(2)", "None", "-1.0, 1.0"),
    ),
    ('"walk"', ("None", "3", '"[/b]"', '""', '"x" * 9999', '"a\\nb"')),
    (
        ", 4, ends",
        (", 0, ends", ", -1, ends", ", 1.5, ends", ', "4", ends', ", None, ends", ", 10**12, ends", ", True, ends"),
    ),
    (
        "size=2",
        (
            "size=0",
            "size=-1",
            "size=1.5",
            'size="2"',
            "size=10**15",
            "kind='one-hot', size=2",
            "kind='what', size=2",
            "labels=('a', 'a'), size=2",
            "low=1, high=0, size=2",
        ),
    ),
    (
        "low=-1.0, high=1.0",
        (
            "low=1.0, high=-1.0",
            "low=float('nan')",
            "low='x'",
            "kind='int'",
            "kind='bool', low=0, high=1",
            "kind='one-hot', size=3",
        ),
    ),
    (
        "model = Walk()",
        (
            "model = Walk",
            "model = lambda: Walk()",
            "model = None",
            "def model(): raise SystemExit(4)",
            "import sys; sys.exit(5)",
            "raise KeyboardInterrupt('no')",
            "1 / 0",
            "print('hello'); model = Walk()",
            "def model(): return model()\nmodel()",
            "model = Walk(1)",
            "model = Walk(); model.finite = 3",
            "model = Walk(); del Walk.reset",
            "(" * 500,
            "x = '" + "a",
            "import not_there",
            "def model(): yield 1",
            "class model(Walk):\n    def __getattr__(self, name): raise SystemExit('no')",
        ),
    ),
)


def test_python_models(tmp_path):
    path = tmp_path / "walk.py"

    def act(dice):
        text = MODEL
        for old, new in dice.sample(MODEL_CHANGES, dice.randint(1, 2)):
            text = text.replace(old, dice.choice(new))
        if dice.random() < 0.3:
            text = mutated(text, dice, tuple("()[]:,=\n "), 2)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        store = tmp_path / "made.store"
        ways = (["collect", f"{path}:model", "--store", str(store), "--count", "2"], ["check", f"{path}:model"])
        status = command(*dice.choice(ways))
        assert status in (0, 2)
        assert status == 0 or not store.exists()
        store.unlink(missing_ok=True)
        return status

    fuzz("Python models", 12, act)


RULE = """\
import numpy as np

def rule(trajectory):
    return (trajectory.states[..., 0].max(axis=1) > 0).astype(int)

rule.categories = ("good", "bad")
"""
RULE_CHANGES = (
    (
        "(trajectory.states[..., 0].max(axis=1) > 0).astype(int)",
        (
            "None",
            "0",
            "[]",
            "'good'",
            "['good'] * len(trajectory)",
            "['worse'] * len(trajectory)",
            "[[0]] * len(trajectory)",
            "[0, [1]]",
            "np.full(len(trajectory), np.nan)",
            "np.full(len(trajectory), 7)",
            "np.full(len(trajectory), -1)",
            "np.full(len(trajectory), 0.5)",
            "[object()] * len(trajectory)",
            "[1j] * len(trajectory)",
            "trajectory",
            "trajectory.states[..., 99]",
            "1 / 0",
            "exit(2)",
            "rule(trajectory)",
            "[b'good'] * len(trajectory)",
            "np.zeros((len(trajectory), 1))",
            "(x for x in [1])",
            "[10**30] * len(trajectory)",
            "{0: 1}",
            "trajectory.states.__setitem__(0, 0)",
        ),
    ),
    (
        "(trajectory):",
        ("():", "(a, b, c):", "(*a):", "(trajectory, model):", "(**a):", "(a, b=1):", "(*, trajectory):"),
    ),
    (
        '("good", "bad")',
        (
            "None",
            "'good < bad'",
            "'good'",
            "()",
            "('a', 'a')",
            "(1, 2)",
            "5",
            "'[/b] < x'",
            "('', 'a')",
            "'a<b<c'",
            "object()",
            "iter(['x', 'y'])",
        ),
    ),
    (
        "rule.categories =",
        (
            "rule = print; categories =",
            "rule = 5; categories =",
            "rule = int; categories =",
            "class rule: pass\nrule.categories =",
            "rule = dict; categories =",
            "rule = lambda t: 1 / 0; rule.categories =",
            "raise SystemExit; rule.categories =",
        ),
    ),
)


def test_rules(tmp_path):
    model = load_model("navigation?horizon=3")
    import jax

    batch = rollout(model, UniformPolicy(model), jax.random.key(0), 4)
    path = tmp_path / "rules.py"

    def act(dice):
        text = RULE
        for old, new in dice.sample(RULE_CHANGES, dice.randint(0, 2)):
            text = text.replace(old, dice.choice(new))
        path.write_text(mutated(text, dice, tuple("()[]:,=\n "), 2) if dice.random() < 0.3 else text, errors="replace")
        rule = load_rule(f"{path}:{dice.choice(('rule',) * 9 + ('', 'none', 'np', '__name__'))}", model)
        assert set(np.asarray(rule.label(batch)).tolist()) <= set(range(len(rule.scale)))

    fuzz("rules", 60, act)


# Command lines.

COMMANDS = {
    "models": [],
    "check": ["MODEL"],
    "collect": ["MODEL", "--store", "--policy", "--count", "--horizon", "--rule"],
    "label": [
        "PATH",
        "--rule",
        "--model",
        "--annotator",
        "--every",
        "--import",
        "--export",
        "--next",
        "--safety",
        "--verify",
    ],
    "fit": [
        "PATH",
        "--out",
        "--kind",
        "--layers",
        "--units",
        "--members",
        "--start",
        "--steps",
        "--batch",
        "--held-out",
        "--json",
    ],
    "explain": ["PATH", "NUMBER", "--safety", "--out"],
    "plan": [
        "MODEL",
        "--safety",
        "--constraint",
        "--rule",
        "--categories",
        "--method",
        "--seeds",
        "--labels",
        "--rounds",
        "--epochs",
        "--batch",
        "--widths",
        "--confidence",
        "--json",
    ],
    "resume": ["PATH", "--json"],
    "certify": ["PATH", "--rollouts", "--people", "--confidence", "--json"],
    "report": ["PATH"],
    "export": ["PATH", "PATH"],
    "limits": ["MODEL", "--constraint", "--rule", "--discount", "--json"],
    "reproduce": ["WHAT", "--maps", "--seeds", "--epochs", "--workers"],
}
FLAGS = {"--every", "--verify", "--json", "--people", "--quiet"}
BAD_MODELS = (
    "",
    "navigaton",
    "nowhere.rddl",
    "nowhere.py:x",
    "folder",
    "hvac?rooms=3",
    "x" * 5000,
    "[/b]",
    "navigation?",
    "there.txt",
)


def value(dice: random.Random, paths: list[str]) -> str:
    number = str(dice.choice((0, 1, -1, 2, 7, 2**31, 2**63, 10**30, -(2**64), 1.5)))
    return dice.choice(
        (number, dice.choice(paths), dice.choice(ODD_TEXTS), "".join(dice.choices(string.printable, k=6)))
    )


def test_command_lines(tmp_path, monkeypatch, damaged_source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "there.txt").write_text("something")
    (tmp_path / "good.store").write_bytes(damaged_source)
    paths = [
        "folder",
        "there.txt",
        "good.store",
        "nowhere",
        "folder/x",
        "there.txt/x",
        "",
        ".",
        "/",
        "x" * 300,
        "a/" * 3000,
    ]
    paths += ["z[/b]", "\udcff\udcfe", "-", "--", "ä.store", "a\nb", "/dev/null", "/proc/self/mem"]

    def act(dice):
        name = dice.choice(sorted(COMMANDS))
        words = [name]
        for part in COMMANDS[name]:
            if part == "MODEL":
                words.append(dice.choice(BAD_MODELS))  # never a sound one: no work is to be done here
            elif part == "WHAT":
                words.append(dice.choice(("table2", "", "alll", "--quick")))
            elif not part.startswith("--"):
                words.append(dice.choice(paths) if part == "PATH" else value(dice, paths))
            elif dice.random() < 0.4:
                words += [part] if part in FLAGS else [part, value(dice, paths)]
        if dice.random() < 0.3:
            words += dice.choice(
                (["--seed", value(dice, paths)], ["--quiet"], ["--help"], ["--sed", "1"], ["more"], ["--seed="])
            )
        if dice.random() < 0.1:
            dice.shuffle(words)
        status = command(*words)
        (tmp_path / "good.store").write_bytes(damaged_source)
        return status

    fuzz("command lines", 150, act)


# Stores.


@pytest.fixture(scope="module")
def damaged_source(tmp_path_factory) -> bytes:
    """The file of a sound store with labels."""
    path = tmp_path_factory.mktemp("store") / "good.store"
    with Store.create(path, SPEC) as store:
        ids, _ = store.add(random_trajectories(30), policy="random", round=1, seed=2)
        store.label(ids[:20], [0, 1, 2, 0] * 5, "alice")
        store.label(ids[5:10], [2] * 5, "bob")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
    connection.close()
    return path.read_bytes()


PUT_IN = set(steps(random_trajectories(30)))


def read_all(path: Path) -> None:
    """Everything that a store is ever asked."""
    with Store.open(path) as store:
        store.verify()
        _, _, categories = store.labelled()
        store.labelled("majority")
        ids, whole = store.everything()
        assert set(steps(whole)) <= PUT_IN, "what is read is what was put in"
        store.unlabelled()
        store.sources(ids.tolist())
        store.get(ids.tolist())
        store.counts()
        store.agreement()
        store.history(1)
        assert set(categories.tolist()) <= {0, 1, 2}
        export_trajectories(store, path.with_name("all.csv"))
        export_labels(store, path.with_name("all.labels.csv"))
        more, _ = store.add(random_trajectories(3, seed=9), policy="more")
        store.label(more, [0, 1, 2], "carol")


def test_stores_with_flipped_bits(tmp_path, damaged_source):
    path = tmp_path / "damaged.store"

    def act(dice):
        data = damaged_source
        if dice.random() < 0.5:  # where the numbers are, and not in the middle of nowhere
            page = 8192 * dice.randrange(len(data) // 8192)
            data = data[:page] + flipped(data[page : page + 8192], dice)[:8192].ljust(8192, b"\0") + data[page + 8192 :]
        else:
            data = flipped(data, dice)
        for beside in tmp_path.iterdir():
            beside.unlink()
        path.write_bytes(data)
        if dice.random() < 0.1:
            return command("label", str(path), dice.choice(("--verify", "--every")))
        read_all(path)

    fuzz("stores with flipped bits", 60, act)


ROWS = (
    "NULL",
    "-1",
    "0",
    "3",
    "99",
    "1.5",
    "'x'",
    "''",
    "x'00'",
    "9223372036854775807",
    "'" + "x" * 5000 + "'",
    "x'ff'",
    "CAST(x'ff' AS TEXT)",
)
COLUMNS = {
    "about": ("key", "value"),
    "trajectories": ("id", "length", "steps", "content", "policy", "round", "seed", "time"),
    "labels": ("id", "trajectory", "category", "annotator", "time"),
}
DOCUMENTS = (
    "{}",
    "[]",
    "null",
    "3",
    "",
    "{",
    '"x"',
    "[" * 100_000,
    '{"name": 3}',
    '["none"]',
    '["a", "a"]',
    "[1, 2]",
    '{"name": "x", "horizon": "5"}',
)


def test_stores_with_other_rows(tmp_path, damaged_source):
    path = tmp_path / "damaged.store"

    def act(dice):
        for beside in tmp_path.iterdir():
            beside.unlink()
        path.write_bytes(damaged_source)
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        for _ in range(dice.randint(1, 2)):
            with_error = dice.random()
            table = dice.choice(sorted(COLUMNS))
            column = dice.choice(COLUMNS[table])
            try:
                if with_error < 0.1:
                    connection.execute(f"DROP TABLE {table}")
                elif with_error < 0.2:
                    connection.execute(
                        f"DELETE FROM {table} WHERE rowid % 3 = 0"
                        if table != "about"
                        else "DELETE FROM about WHERE key = 'hash'"
                    )
                elif table == "about":
                    document = dice.choice(DOCUMENTS)
                    if dice.random() < 0.5:
                        document = mutated(
                            connection.execute("SELECT value FROM about WHERE key = 'model'").fetchone()[0], dice
                        )
                    connection.execute(
                        "UPDATE about SET value = ? WHERE key = ?", (document, dice.choice(("model", "scale", "hash")))
                    )
                else:
                    connection.execute(
                        f"UPDATE {table} SET {column} = {dice.choice(ROWS)} WHERE id = {dice.randint(1, 30)}"
                    )
            except (sqlite3.Error, UnicodeError, ValueError, TypeError):
                pass  # this damage cannot be done
        connection.close()
        if dice.random() < 0.1:
            return command("label", str(path), dice.choice(("--verify", "--every")))
        read_all(path)

    fuzz("stores with other rows", 60, act)


# Files that are imported.


@pytest.fixture(scope="module")
def exports(tmp_path_factory, damaged_source) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("exports")
    path = folder / "good.store"
    path.write_bytes(damaged_source)
    with Store.open(path) as store:
        for ending in ("csv", "npz", "parquet"):
            export_trajectories(store, folder / f"all.{ending}")
        export_labels(store, folder / "all.labels.csv")
    return {ending: (folder / f"all.{ending}").read_bytes() for ending in ("csv", "npz", "parquet", "labels.csv")}


@pytest.fixture
def open_store(tmp_path, damaged_source):
    path = tmp_path / "into.store"
    path.write_bytes(damaged_source)
    with Store.open(path) as store:
        yield store


def imported(store: Store, path: Path, data: bytes) -> None:
    """Import, and know that a refusal wrote nothing."""
    path.write_bytes(data)
    before = len(store), len(store.log())
    try:
        import_file(store, path)
    except InputError:
        assert (len(store), len(store.log())) == before
        raise


CELLS = (
    ",",
    "\n",
    '"',
    "''",
    "'=1",
    "\r",
    ";",
    "mild",
    "none",
    "trajectory",
    "step",
    "reward",
    "1e39",
    "-0.0",
    "1_0",
    "+1",
    "٣",
    *ODD_TEXTS,
)


@pytest.mark.parametrize(("ending", "share"), [("csv", 80), ("labels.csv", 60)])
def test_csv(ending, share, exports, open_store, tmp_path):
    text = exports[ending].decode()

    def act(dice):
        data = mutated(text[: dice.choice((200, 1000, len(text)))], dice, CELLS).encode("utf-8", "surrogateescape")
        imported(open_store, tmp_path / f"x.{ending}", flipped(data, dice) if dice.random() < 0.3 else data)

    fuzz(f"imports of {ending}", share, act)


def test_npz(exports, open_store, tmp_path):
    base = tmp_path / "base.npz"
    base.write_bytes(exports["npz"])
    whole = dict(np.load(base).items())
    types = ("<f4", "<f8", "<i8", "<i1", "<u8", "?", "<c8", "<U3", "S2", "<M8[s]", "O", "<f2", ">f4")

    def act(dice):
        if dice.random() < 0.4:
            return imported(open_store, tmp_path / "x.npz", flipped(exports["npz"], dice))
        arrays = dict(whole)
        for _ in range(dice.randint(1, 3)):
            name = dice.choice(sorted(arrays) or ["states"])
            way = dice.random()
            if way < 0.2:
                arrays.pop(name, None)
            elif way < 0.3:
                arrays[dice.choice(("extra", "label", "policy", "seed", "../x", "a/b"))] = whole["length"]
            elif way < 0.6:
                shape = tuple(dice.choice((0, 1, 3, 30)) for _ in range(dice.randint(0, 4)))
                arrays[name] = np.full(shape, dice.choice((0.0, 1.0, np.nan, 1e300, -1)))
            elif way < 0.9:
                try:
                    arrays[name] = np.asarray(whole[name]).astype(dice.choice(types))
                except (ValueError, TypeError, KeyError):
                    continue
            else:
                arrays[name] = np.asarray(arrays[name]).ravel()
        np.savez(tmp_path / "y.npz", allow_pickle=True, **arrays)
        return imported(open_store, tmp_path / "x.npz", (tmp_path / "y.npz").read_bytes())

    fuzz("imports of NPZ", 60, act)


def test_npz_headers(exports, open_store, tmp_path):
    """Archives whose arrays claim what they do not hold."""
    base = tmp_path / "base.npz"
    base.write_bytes(exports["npz"])
    with zipfile.ZipFile(base) as archive:
        parts = {entry: archive.read(entry) for entry in archive.namelist()}
    swaps = (
        "(30, 5)",
        "(10**12,)",
        "(1099511627776, 5)",
        "(-1, 5)",
        "()",
        "(30, 5, 3, 1)",
        "(2**70,)",
        "(True,)",
        "'x'",
    )

    def act(dice):
        with zipfile.ZipFile(
            tmp_path / "y.npz", "w", dice.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        ) as archive:
            chosen = dice.choice(sorted(parts))
            for name, data in parts.items():
                if name == chosen:
                    head, body = data[:128], data[128:]
                    if dice.random() < 0.7:
                        at = head.find(b"'shape': ")
                        end = head.find(b")", at) + 1
                        text = head[: at + 9] + dice.choice(swaps).encode() + head[end:]
                        head = text[:127].ljust(127) + b"\n"
                    else:
                        head = flipped(head, dice, 3)
                    data = head + body
                archive.writestr(name, data)
        return imported(open_store, tmp_path / "x.npz", (tmp_path / "y.npz").read_bytes())

    fuzz("imports of NPZ with other headers", 40, act)


def test_parquet(exports, open_store, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    base = tmp_path / "base.parquet"
    base.write_bytes(exports["parquet"])
    whole = pq.read_table(base)

    def act(dice):
        table = whole.slice(0, dice.choice((0, 1, 10, len(whole))))
        for _ in range(dice.randint(1, 3)):
            index = dice.randrange(table.num_columns)
            name = table.column_names[index]
            way = dice.random()
            try:
                if way < 0.2:
                    table = table.remove_column(index)
                elif way < 0.4:
                    names = list(table.column_names)
                    names[index] = dice.choice(("label", "step", *ODD_TEXTS[:20]))
                    table = table.rename_columns(names)
                elif way < 0.7:
                    kind = dice.choice((pa.string(), pa.int8(), pa.float16(), pa.float64(), pa.bool_(), pa.binary()))
                    table = table.set_column(index, name, table.column(index).cast(kind))
                else:
                    column = [dice.choice((None, "x", "", "1", "nan", "none")) for _ in range(len(table))]
                    table = table.set_column(index, name, [column])
            except (pa.ArrowException, IndexError, UnicodeError):
                continue
            if not table.num_columns:
                break
        pq.write_table(table, tmp_path / "y.parquet")
        return imported(open_store, tmp_path / "x.parquet", (tmp_path / "y.parquet").read_bytes())

    fuzz("imports of Parquet", 30, act)
