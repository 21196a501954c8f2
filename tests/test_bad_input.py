"""Bad input gets exit status 2 and one sentence that names the place: maps, RDDL, references, options."""

import pytest

from sidestep.cli.main import main

TANK = """\
// A tank with valves and a pump.
domain tank {
    types {
        pipe : object;
    };

    pvariables {
        WIDTH(pipe) : { non-fluent, real, default = 1.0 };
        WET         : { non-fluent, real, default = 0.3 };

        water       : { state-fluent, real, default = 5.0 };
        raining     : { state-fluent, bool, default = false };
        openings    : { state-fluent, int, default = 0 };

        valve(pipe) : { action-fluent, bool, default = false };
        pump        : { action-fluent, real, default = 0.0 };
    };

    cpfs {
        raining' = Bernoulli(WET);
        openings' = openings + (sum_{?p : pipe} [valve(?p)]);
        water' = max[0.0, min[10.0, water + pump + raining
            - (sum_{?p : pipe} [valve(?p) * WIDTH(?p)])]];
    };

    reward = -abs[water - 7.0] - 0.1 * openings;

    action-preconditions {
        pump >= 0.0;
        pump <= 2.0;
    };

    termination {
        water <= 0.5;
    };
}
"""

INSTANCE = """\
non-fluents two_pipes {
    domain = tank;
    objects {
        pipe : { p1, p2 };
    };
    non-fluents {
        WIDTH(p2) = 0.5;
    };
}

instance small_tank {
    domain = tank;
    non-fluents = two_pipes;
    init-state {
        water = 6.0;
    };
    horizon = 15;
    discount = 0.95;
}
"""


def refused(reference, capsys):
    """The one sentence that `check` says of this reference."""
    return sentence(["check", str(reference)], capsys)


def sentence(arguments, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("sidestep: ")
    assert said.err.count("\n") == 1
    assert said.err.endswith("\n")
    assert "Traceback" not in said.err
    return said.err.removeprefix("sidestep: ").rstrip("\n")


# What is replaced in the domain, the line that the message must name, and words of the message.
DOMAIN_ERRORS = {
    "missing semicolon after a formula": ("[valve(?p)]);\n", "[valve(?p)])\n", 21, "expected ';' before 'water''"),
    "missing semicolon after a variable": ("int, default = 0 };", "int, default = 0 }", 13, "expected ';'"),
    "missing semicolon at the end of the formulas": ("WIDTH(?p)])]];", "WIDTH(?p)])]]", 23, "expected ';' before '}'"),
    "unknown variable": ("water + pump +", "water + pmp +", 22, "'pmp'; did you mean 'pump'?"),
    "unknown variable in the second line of a formula": ("* WIDTH(?p)", "* WIDT(?p)", 23, "did you mean 'WIDTH'?"),
    "unknown variable that is like nothing": ("water + pump +", "water + zzz +", 22, "'zzz'; declare it in pvariables"),
    "wrong name of a distribution": ("Bernoulli(", "Bernouli(", 20, "did you mean 'Bernoulli'?"),
    "distribution with too many arguments": ("Bernoulli(WET)", "Bernoulli(WET, 1)", 20, "expected ')' before ','"),
    "distribution with too few arguments": ("Bernoulli(WET)", "Normal(WET)", 20, "expected ',' before ')'"),
    "unknown function": ("-abs[", "-abz[", 26, "no function 'abz[...]'; did you mean 'abs'?"),
    "unknown function that is like nothing": ("-abs[", "-qqqqq[", 26, "there are abs, acos"),
    "function with too few arguments": ("max[0.0, min", "max[min", 22, "max requires 2 arguments, got 1"),
    "unknown aggregation": ("(sum_{?p : pipe} [valve(?p)])", "(summ_{?p : pipe} [valve])", 21, "did you mean 'sum'?"),
    "type that does not exist in a sum": ("{?p : pipe} [valve(?p)]);", "{?p : pype} [valve(?p)]);", 21, "'pype'"),
    "type that does not exist in a declaration": ("valve(pipe)", "valve(pype)", 15, "Type <pype>"),
    "range that does not exist": ("state-fluent, int,", "state-fluent, integer,", 13, "<integer>"),
    "kind that does not exist": ("state-fluent, int", "state-fluents, int", 13, "did you mean 'state-fluent'?"),
    "variable with too many arguments": ("* WIDTH(?p)", "* WIDTH(?p, ?p)", 23, "requires 1 argument(s), got 2"),
    "free variable that nothing binds": ("* WIDTH(?p)", "* WIDTH(?q)", 23, "<?q>"),
    "bracket that is not closed": ("-abs[water - 7.0]", "-abs[water - 7.0", 26, "or ']' before ';'"),
    "parenthesis that is not closed": ("[valve(?p)]);\n", "[valve(?p)];\n", 21, "expected ')' before ';'"),
    "brace that is not closed": ("(?p)])]];\n    };", "(?p)])]];\n", 26, "expected '}' or a name before 'reward'"),
    "brace that closes nothing": ("        water <= 0.5;\n", "        water <= 0.5;\n    };\n    };\n", 36, "expected"),
    "assignment for comparison": ("water <= 0.5;", "water = 0.5;", 34, "'==' compares"),
    "dollar": ("water + pump", "water $ pump", 22, "'$' has no meaning"),
    "character outside of the language": ("water + pump", "water § pump", 22, "'§' has no meaning"),
    "section that does not exist": ("termination {", "terminate {", 33, "did you mean 'termination'?"),
    "name that is a word of the language": ("openings    :", "level    :", 13, "'level' is a word of RDDL itself"),
    "no reward": ("    reward = -abs[water - 7.0] - 0.1 * openings;\n", "", 2, "no 'reward = ...;'"),
    "no formula for a state": ("        raining' = Bernoulli(WET);\n", "", 12, "<raining'>"),
    "formula for what is not declared": ("raining' =", "rain' =", 20, "CPF <rain'> is not declared"),
    "state without its prime": ("raining' =", "raining =", 12, "<raining'>"),
    "two formulas for a state": ("WET);", "WET);\n        raining' = Bernoulli(WET);", 20, "is repeated"),
    "circle of formulas": ("Bernoulli(WET)", "raining' | (pump > 1.0)", 20, "Cyclic dependency"),
    "variable declared twice": ("raining     :", "water : { state-fluent, real };\nraining :", 12, "<water>"),
    "default of another type": ("int, default = 0 ", "int, default = 0.5 ", 13, "can not be cast"),
    "integer action without bounds": ("action-fluent, real, default = 0.0", None, 16, "without bounds"),
    "no action": (None, None, 7, "declares no action-fluent"),
}  # fmt: skip


def domain_with(old, new):
    if old is None:  # nothing to decide
        text = TANK.replace("        valve(pipe) : { action-fluent, bool, default = false };\n", "")
        text = text.replace("        pump        : { action-fluent, real, default = 0.0 };\n", "")
        text = text.replace("(sum_{?p : pipe} [valve(?p)])", "1").replace(" + pump", "").replace("valve(?p) * ", "")
        return text.replace("pump", "water")
    if new is None:  # an integer action, of which one side is left open
        return TANK.replace(old, "action-fluent, int, default = 0").replace("        pump <= 2.0;\n", "")
    assert TANK.count(old) == 1, old
    return TANK.replace(old, new)


@pytest.mark.parametrize("name", DOMAIN_ERRORS)
def test_domain_that_is_wrong(name, tmp_path, capsys):
    old, new, line, words = DOMAIN_ERRORS[name]
    path = tmp_path / "tank.rddl"
    path.write_text(domain_with(old, new) + INSTANCE)
    said = refused(path, capsys)
    assert said.startswith(f"{path}:{line}: ")
    assert words in said


INSTANCE_ERRORS = {
    "object that does not exist": ("WIDTH(p2)", "WIDTH(p9)", 7, "'p9'"),
    "constant that does not exist": ("WIDTH(p2)", "WIDE(p2)", 7, "<WIDE>"),
    "state among the constants": ("WIDTH(p2)", "water", 7, "<water>"),
    "first value of what is no state": ("water = 6.0", "watr = 6.0", 15, "<watr>"),
    "first value of another type": ("water = 6.0", "raining = 6.5", 15, "<raining>"),
    "objects of a type that does not exist": ("        pipe :", "        pype :", 4, "<pipe>"),
    "type without objects": ("        pipe : { p1, p2 };\n", "", 4, "expected a name before '}'"),
    "no horizon": ("    horizon = 15;\n", "", 11, "no 'horizon = ...;'"),
    "no discount": ("    discount = 0.95;\n", "", 11, "no 'discount = ...;'"),
    "horizon of nothing": ("horizon = 15", "horizon = 0", 17, "from 1 on, not 0"),
    "negative horizon": ("horizon = 15", "horizon = -3", 17, "before '-'"),
    "horizon without end": ("horizon = 15", "horizon = pos-inf", 17, "a whole number from 1 on, not pos-inf"),
    "discount above one": ("discount = 0.95", "discount = 2.0", 18, "at most 1, not 2.0"),
    "text that ends too early": ("    discount = 0.95;\n}\n", "    discount = 0.95;\n", 18, "the text ends too early"),
    "missing semicolon": ("domain = tank;\n    non-fluents", "domain = tank\n    non-fluents", 12, "expected ';'"),
}  # fmt: skip


@pytest.mark.parametrize("name", INSTANCE_ERRORS)
def test_instance_that_is_wrong(name, tmp_path, capsys):
    """In a file of its own, after the domain's: the line is a line of the second file."""
    old, new, line, words = INSTANCE_ERRORS[name]
    assert INSTANCE.count(old) == 1
    domain, instance = tmp_path / "domain.rddl", tmp_path / "instance.rddl"
    domain.write_text(TANK)
    instance.write_text(INSTANCE.replace(old, new))
    said = refused(f"{domain}:{instance}", capsys)
    place = domain if name == "objects of a type that does not exist" else instance
    assert said.startswith(f"{place}:{line}: ")
    assert words in said


def test_files_of_which_one_lacks_its_block(tmp_path, capsys):
    domain, instance = tmp_path / "domain.rddl", tmp_path / "instance.rddl"
    domain.write_text(TANK)
    instance.write_text(INSTANCE)
    said = refused(domain, capsys)
    assert said.startswith(f"{domain}: expected a block 'instance name {{ ... }}'")
    assert "domain.rddl:instance.rddl" in said
    assert refused(instance, capsys).startswith(f"{instance}: expected a block 'domain name {{ ... }}'")


def test_errors_in_a_comment_do_not_count(tmp_path, capsys):
    path = tmp_path / "tank.rddl"
    text = TANK.replace("// A tank", "// instance tank { pmp; § summ_{ A tank")
    path.write_text(text.replace("water + pump +", "water + pmp +") + INSTANCE)
    assert refused(path, capsys).startswith(f"{path}:22: ")


MAPS = {
    "empty": ("m.bp", "", ":1:1: expected a boxpushing map but found nothing"),
    "unknown character": ("m.bp", "S.B\n.?G\n", ":2:2: unknown character '?'"),
    "wrong case": ("m.nav", "S.x\n..G\n", ":1:3: unknown character 'x'"),
    "character of the other domain": ("m.nav", "SFG\n", ":1:2: unknown character 'F'"),
    "tab": ("m.nav", "S.\t\n..G\n", ":1:3: unknown character '\\t'"),
    "blank at the end of a row": ("m.nav", "S.. \n..G.\n", ":1:4: unknown character ' '"),
    "ragged": ("m.bp", "S.B\n..G.\n", ":2:4: this row has 4 cells and the first has 3"),
    "empty row within": ("m.nav", "S.\n\n.G\n", ":2:1: this row has 0 cells"),
    "no start": ("m.bp", "..B\n..G\n", "expected one start 'S' but found none"),
    "no goal": ("m.bp", "S.B\n...\n", "expected one goal 'G' but found none"),
    "no box": ("m.bp", "S..\n..G\n", "expected one box 'B' but found none"),
    "two starts": ("m.nav", "S.S\n..G\n", ":1:3: expected one start 'S' but this is a second one"),
    "goal behind walls": ("m.nav", "S.X.\n..XG\n", ":2:4: the goal 'G' cannot be reached"),
    "box behind walls": ("m.bp", "S.xB\n.Gxx\n", ":1:4: the box 'B' cannot be reached"),
}


@pytest.mark.parametrize("name", MAPS)
def test_map_that_is_wrong(name, tmp_path, capsys):
    file, text, words = MAPS[name]
    path = tmp_path / file
    path.write_text(text)
    said = refused(path, capsys)
    assert said.startswith(str(path))
    assert words in said


def test_files_that_cannot_be_read(tmp_path, capsys):
    (tmp_path / "folder.rddl").mkdir()
    (tmp_path / "folder.bp").mkdir()
    (tmp_path / "binary.rddl").write_bytes(b"domain \xff\xfe")
    (tmp_path / "binary.nav").write_bytes(b"S.\n.\xffG")
    for name, words in (
        ("folder.rddl", "found a folder"),
        ("folder.bp", "cannot be read"),
        ("binary.rddl", ":1: expected UTF-8 text"),
        ("binary.nav", ":2:2: expected UTF-8 text"),
        ("missing.rddl", "no such file"),
        ("missing.nav", "cannot be read (No such file or directory)"),
        ("missing.py:model", "no such file"),
    ):
        said = refused(tmp_path / name, capsys)
        assert said.startswith(str(tmp_path / name.partition(":")[0]))
        assert words in said


REFERENCES = {
    "navigaton": "did you mean 'navigation'?",
    "": "its value is empty",
    "warehouse": "expected a built-in name, a path",
    "model.txt": "expected a built-in name, a path",
    "navigation:x": "expected a built-in name",
    "town.nav:x": "expected a built-in name",
    "?horizon=3": "expected a built-in name",
    "model.py": "expected file.py:name",
    "navigation?rooms=3": "there is no option 'rooms' here; there are relaxed, horizon",
    "navigation?=3": "there is no option ''",
    "boxpushing?relaxed": "there is no option 'relaxed' here; there are map, horizon",
    "boxpushing?map=99": "no map '99': boxpushing has the maps 1, 2",
    "driving?map=../1": "no map '../1'",
    "hvac?rooms=7": "option 'rooms' is an even number",
    "hvac?rooms=abc": "option 'rooms' is a whole number from 2 to",
    "hvac?rooms=0": "option 'rooms' is a whole number from 2 to",
    "hvac?rooms=2.5": "not '2.5'",
    "hvac?rooms": "not ''",
    "hvac?rooms=6&rooms=8": "given twice",
    "hvac?rooms=99999999999": "whole number from 2 to 2000",
    "reservoir?reservoirs=0": "option 'reservoirs' is a whole number from 1",
    "navigation?horizon=0": "option 'horizon' is a whole number from 1",
    "navigation?horizon=-5": "not '-5'",
    "navigation?relaxed=maybe": "option 'relaxed' is true or false, not 'maybe'",
    "driving?horizon=x": "option 'horizon' is a whole number",
}


@pytest.mark.parametrize("reference", REFERENCES)
def test_reference_that_is_wrong(reference, capsys):
    said = refused(reference, capsys)
    assert said.startswith((f"MODEL '{reference}': ", reference or "MODEL"))
    assert REFERENCES[reference] in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chek", "navigation"], "there is no command 'chek'; did you mean 'check'?"),
        (["qqq", "navigation"], "there is no command 'qqq'; the commands are demo, models, check"),
        (["--bogus"], "'--bogus'"),
        (["check"], "required: MODEL; see sidestep check --help"),
        (["check", "navigation", "more"], "'more'"),
        (["check", "navigation", "--seed", "x"], "option --seed: expected a whole number, not 'x'"),
        (["check", "navigation", "--seed", "1.5"], "option --seed: expected a whole number, not '1.5'"),
        (["check", "navigation", "--sed", "1"], "unknown option or argument '--sed'; did you mean --seed?"),
        (["check", "navigation", "--seed"], "option --seed: expected one argument"),
        (["models", "--seed", "1"], "unknown option or argument '--seed'; see sidestep models --help"),
        (["models", "all"], "'all'"),
        (["plan", "navigation", "--margin", "x"], "option --margin: expected a number, not 'x'"),
        (["plan", "navigation", "--epochs", "1.5"], "option --epochs: expected a whole number, not '1.5'"),
        (["plan", "navigation", "--widths", "8", "x"], "option --widths: expected a whole number, not 'x'"),
        (["plan", "navigation", "--observe", "sky"], "--observe: expected one of clock, memory, state, not 'sky'"),
        (
            ["reproduce", "tables"],
            "WHAT: expected one of all, continuous, curves, nonmarkov-grid, table1, not 'tables'",
        ),
    ],
)
def test_command_that_is_wrong(arguments, words, capsys):
    assert words in sentence(arguments, capsys)
