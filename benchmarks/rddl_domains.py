"""What Sidestep makes of every domain of rddlrepository: does it load, has it a gradient, is what it forbids kept?

    python benchmarks/rddl_domains.py [--only NAME ...] [--out FOLDER]

writes rddl_domains.json and rddl_domains.md into the folder. Of each domain the first instance is looked at by what
`sidestep check` does, with a limit of time. The actions of 200 random trajectories must keep every precondition; up to
60 steps of 8 others are put to pyRDDLGym's own simulator, which evaluates the same syntax tree in double precision.
"""

import argparse
import json
import multiprocessing
import os
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sidestep.reproduce.tables import heading
from sidestep.runtime.compilation import OLD_GENERATOR, has_old_generator
from sidestep.runtime.files import atomic_write

LIMIT = 600.0  # seconds for one domain
STEPS = 60  # of random trajectories that pyRDDLGym is asked about
RANGE = "integers=0..20"
COLUMNS = (
    "domain",
    "loads",
    "actions",
    "gradient",
    "rules are kept by",
    "kept",
    "pyRDDLGym allows",
    "seconds",
)


def domains() -> dict[str, tuple[Path, Path]]:
    """Name, domain file and first instance of every domain; one that has a domain file an instance stands here once."""
    import rddlrepository

    found: dict[str, tuple[Path, Path]] = {}
    archive = Path(rddlrepository.__file__).parent / "archive"
    for domain in sorted(archive.rglob("domain.rddl")):
        parts = domain.parent.relative_to(archive).parts
        if parts[-1][0] == "p" and parts[-1][1:].isdigit():
            parts = parts[:-1]
        number = {file: int(file.stem.removeprefix("instance")) for file in domain.parent.glob("instance*.rddl")}
        found.setdefault("/".join(parts), (domain, min(number, key=number.__getitem__)))
    return found


def look(name: str) -> dict[str, Any]:
    """One row of the table, by running the model."""
    import jax

    from sidestep.core.errors import InputError
    from sidestep.core.model import UniformPolicy, rollout
    from sidestep.models import load_model
    from sidestep.models.check import check_model

    domain, instance = domains()[name]
    reference, row = f"{domain}:{instance}", {"domain": name, "loads": "yes"}
    try:
        model: Any = load_model(reference)
    except InputError as error:
        row["loads"] = str(error).replace(str(domain.parent) + "/", "")
        if RANGE.split("=")[0] not in str(error):
            return row | {"refused": True}
        row |= {"asks": True}
        reference += f"?{RANGE}"
        model = load_model(reference)
    findings = check_model(model, jax.random.key(0), lambda: load_model(reference, double=True))
    row["bad"] = [finding.found for finding in findings if finding.verdict == "bad"]
    row["gradient"] = [[finding.verdict, finding.found] for finding in findings if finding.what == "gradient"]
    row["rules"] = [[finding.verdict, finding.found] for finding in findings if finding.what == "rules"]
    row["obstacles"] = list(model.spec.notes)
    row["actions"] = model.spec.action.size
    row["ways"] = list(model.ways)
    if model.rules:
        trajectory = rollout(model, UniformPolicy(model), jax.random.key(1), 8)
        row["asked"], row["allowed"] = asked_of_pyrddlgym(model, trajectory, domain, instance)
    jax.clear_caches()
    return row


def asked_of_pyrddlgym(model: Any, trajectory: Any, domain: Path, instance: Path) -> tuple[int, int]:
    """How many steps pyRDDLGym was asked about, and how many of them it allows."""
    import numpy as np
    from pyRDDLGym.core.debug.exception import RDDLInvalidActionError
    from pyRDDLGym.core.simulator import RDDLSimulator

    simulator = RDDLSimulator(model.rddl, keep_tensors=True)
    mask = np.asarray(trajectory.mask)
    states, actions = np.asarray(trajectory.states)[mask][:STEPS], np.asarray(trajectory.actions, float)[mask][:STEPS]
    space = model.spec.action
    actions = np.clip(actions, space.low, space.high)  # a bound in single precision may lie above its own in double
    allowed = 0
    for state, action in zip(states, actions, strict=True):
        chosen = as_fluents(space, action, simulator.noop_actions)
        simulator.subs.update(as_fluents(model.spec.state, state, simulator.init_values))
        try:
            simulator.check_default_action_count(chosen)
            allowed += simulator.check_action_preconditions(chosen, silent=True)
        except RDDLInvalidActionError:
            pass
    return len(states), int(allowed)


def as_fluents(space: Any, vector: Any, like: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    kinds = {"real": float, "int": int, "bool": bool}
    return {
        v.name: np.round(vector[space.slices[v.name]], 0 if v.kind != "real" else 12)
        .astype(kinds[v.kind])
        .reshape(np.shape(like[v.name]))
        for v in space.variables
    }


def _serve(names: list[str], results: Any) -> None:
    """In a process of its own, so that one domain can be given up: a row for each name, in order."""
    warnings.simplefilter("ignore")
    # Most of the time goes into compiling programs that run once.
    older = f" --{OLD_GENERATOR}=false" if has_old_generator(version("jaxlib")) else ""
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0" + older)
    for name in names:
        begin = time.time()
        try:
            row = look(name)
        except Exception as error:  # a traceback is what this table must not find
            row = {"domain": name, "loads": f"{type(error).__name__}: {error}", "refused": True, "traceback": True}
        results.put(row | {"seconds": round(time.time() - begin, 1)})


def study(names: list[str]) -> list[dict[str, Any]]:
    """All rows; a domain that takes longer than the limit is given up, and the next one begins in a new process."""
    context = multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []
    while len(rows) < len(names):
        results = context.Queue()
        worker = context.Process(target=_serve, args=(names[len(rows) :], results), daemon=True)
        worker.start()
        try:
            while len(rows) < len(names):
                rows.append(results.get(timeout=LIMIT))
                report(f"{len(rows)} of {len(names)}: {rows[-1]['domain']}, {rows[-1]['seconds']} s")
        except Exception:
            rows.append({"domain": names[len(rows)], "loads": f"took longer than {LIMIT:g} s", "seconds": LIMIT})
        finally:
            worker.kill()
            worker.join()
    return rows


def cells(row: dict[str, Any]) -> list[str]:
    if "actions" not in row:
        return [row["domain"], f"no: {row['loads']}", "", "", "", "", "", f"{row['seconds']:.0f}"]
    loads = "yes" if row["loads"] == "yes" else f"asks for a range of its integers; with ?{RANGE}: yes"
    if row["bad"]:
        loads += f", but {'; '.join(row['bad'])}"
    ways = ", ".join(row["ways"]) or "nothing is forbidden"
    kept = "" if not row["rules"] else "yes" if row["rules"][0][0] == "good" else f"no: {row['rules'][0][1]}"
    allowed = f"{row['allowed']} of {row['asked']} steps" if row.get("asked") else ""
    return [row["domain"], loads, str(row["actions"]), gradient(row), ways, kept, allowed, f"{row['seconds']:.0f}"]


def gradient(row: dict[str, Any]) -> str:
    if not row["gradient"]:
        return ""
    verdicts = {verdict for verdict, _ in row["gradient"]}
    text = "; ".join(found for _, found in row["gradient"])
    if "bad" in verdicts:
        return f"bad: {text}"
    if "good" in verdicts:
        return f"exact: {text}"
    more = len(row["obstacles"]) - 2
    why = "; ".join(row["obstacles"][:2]) + (f" and {more} more" if more > 0 else "")
    return f"none: {why}" if text.startswith("none") else text


def markdown(results: dict[str, Any]) -> str:
    rows, count = results["rows"], results["counts"]
    lines = [
        "# The domains of rddlrepository",
        "",
        f"`python benchmarks/rddl_domains.py`, {results['date']}, {results['versions']}; first instance of each.",
        "",
        f"Of {count['domains']} domains {count['loads']} load as they are and {count['asks']} ask for a range of "
        f"integer actions that the text leaves without bounds; {count['refused']} are refused and "
        f"{count['tracebacks']} end in a traceback. {count['exact']} have an exact gradient, {count['bad']} a bad one. "
        f"{count['forbid']} forbid actions, {count['more']} of them by more than bounds; on 200 random trajectories "
        f"each, {count['kept']} keep to it, and pyRDDLGym's own simulator allows {count['allowed']:,} of "
        f"{count['asked']:,} steps that it was asked about.",
        "",
        "Bounds are bounds on single actions, which may depend on the state; masks are conditions on single boolean "
        "actions; linear ones are kept by projection (real actions) or by taking as much as fits (choices); count is "
        "max-nondef-actions; rejection tries actions out on the compiled precondition. What was seen on random "
        "trajectories is no proof for all others: every audit looks at its own. Before pyRDDLGym is asked, real "
        "actions are clipped to their bounds in double precision, which ours may miss by the rounding of single "
        "precision. Seconds are those of two busy cores.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
    ]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def counted(rows: list[dict[str, Any]]) -> dict[str, int]:
    usable = [row for row in rows if "actions" in row]
    forbid = [row for row in usable if row["ways"]]
    return {
        "domains": len(rows),
        "loads": sum(row["loads"] == "yes" for row in usable),
        "asks": sum(row.get("asks", False) for row in rows),
        "refused": len(rows) - len(usable),
        "tracebacks": sum(row.get("traceback", False) for row in rows),
        "exact": sum(gradient(row).startswith("exact") for row in usable),
        "bad": sum(gradient(row).startswith("bad") for row in usable),
        "forbid": len(forbid),
        "more": sum(set(row["ways"]) != {"bounds"} for row in forbid),
        "kept": sum(row["rules"][0][0] == "good" for row in forbid if row["rules"]),
        "asked": sum(row.get("asked", 0) for row in rows),
        "allowed": sum(row.get("allowed", 0) for row in rows),
    }


def report(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", help="renew the rows of these domains alone")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    arguments = parser.parse_args()
    rows = {row["domain"]: row for row in study(arguments.only or list(domains()))}
    earlier = arguments.out / "rddl_domains.json"
    if arguments.only and earlier.is_file():
        rows = {row["domain"]: row for row in json.loads(earlier.read_text())["rows"]} | rows
    packages = ("rddlrepository", "pyRDDLGym", "pyRDDLGym-jax", "jax")
    results = heading("The domains of rddlrepository", []) | {
        "versions": ", ".join(f"{package} {version(package)}" for package in packages),
        "counts": counted(list(rows.values())),
        "rows": list(rows.values()),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    atomic_write(arguments.out / "rddl_domains.json", json.dumps(results, indent=1) + "\n")
    atomic_write(arguments.out / "rddl_domains.md", markdown(results))
    report(f"written to {arguments.out / 'rddl_domains.md'}")


if __name__ == "__main__":
    main()
