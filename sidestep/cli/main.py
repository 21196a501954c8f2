"""`sidestep COMMAND ...`: find the command, carry it out, and say in one sentence what went wrong."""

import difflib
import os
import sys
import tempfile
import traceback
from importlib import import_module

from sidestep import __version__
from sidestep.cli.arguments import parse
from sidestep.cli.commands import COMMANDS, GROUPS, Command, name_of
from sidestep.cli.console import own_output
from sidestep.core.errors import DiskFull, Infeasible, InputError, shortened
from sidestep.models.user_code import users_fault
from sidestep.runtime.compilation_cache import keep_compiled_programs
from sidestep.runtime.files import NO_SPACE

FIRST = """\
Sidestep plans policies that earn reward and keep clear of side effects that nobody wrote into the model.

Begin with
  sidestep demo                                   the main job on a small robot, with its report, in minutes
  sidestep models                                 the built-in models
  sidestep check my.rddl                          is your own model usable, and if not, why
  sidestep plan my.rddl --rule my_rule.py:rule    from no label to a certified policy; without --rule people label
  sidestep report runs/plan                       what came of it

`sidestep --help` lists all commands, `sidestep COMMAND --help` the options of one."""


def _listed(command: type[Command]) -> str:
    return (command.__doc__ or "").partition("\n")[0]


def help_text() -> str:
    """All commands, in the order in which they are met."""
    parts = ["usage: sidestep COMMAND ...", "Safe planning around side effects that nobody wrote into the model."]
    for heading, commands in GROUPS.items():
        lines = [f"  {name_of(one):11} {_listed(one)}" for one in commands]
        parts.append("\n".join([f"{heading}:", *lines]))
    parts.append("`sidestep COMMAND --help` lists the options of a command, `sidestep --version` tells the version.")
    return "\n\n".join([*parts, EXIT])


EXIT = """\
Exit status: 0 done (plan, resume, certify: every constraint is certified), 1 finished but not certified, or infeasible,
2 bad input, 3 labels are needed, 70 a fault of Sidestep itself, whose traceback is in the file that is named."""

FAULT = 70  # as in sysexits.h


def program() -> int:
    """`main` as a program: a fault of Sidestep itself has a status of its own, and its traceback is kept in a file."""
    try:
        return main()
    except Exception as error:
        with tempfile.NamedTemporaryFile("w", prefix="sidestep-fault-", suffix=".txt", delete=False) as kept:
            kept.write(traceback.format_exc())
        said = shortened(" ".join(f"{type(error).__name__}: {error}".split()))
        text = f"sidestep: this is a fault of Sidestep itself ({said}); please report it with {kept.name}"
        print(text, file=sys.stderr)
        return FAULT


def main(arguments: list[str] | None = None) -> int:
    """Run one command and give its exit status.

    0 done (plan, resume, certify: every constraint is certified), 1 finished but not certified or infeasible, 2 bad
    input in one sentence on standard error, 3 labels are needed.
    """
    try:
        command = _parse(sys.argv[1:] if arguments is None else arguments)
        keep_compiled_programs()
        with own_output():
            status = _carry_out(command)
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


def _parse(words: list[str]) -> Command:
    if not words:
        print(FIRST)
        raise SystemExit(0)
    first = words[0]
    if first in ("--help", "-h", "--version"):
        print(f"sidestep {__version__}" if first == "--version" else help_text())
        raise SystemExit(0)
    if first not in COMMANDS:
        close = difflib.get_close_matches(first, COMMANDS, 1)
        advice = f"did you mean '{close[0]}'?" if close else f"the commands are {', '.join(COMMANDS)}"
        raise InputError(f"there is no command '{shortened(first)}'; {advice}")
    return parse(COMMANDS[first], f"sidestep {first}", words[1:])


def _carry_out(command: Command) -> int:
    """Modules of commands are loaded one at a time, since they load JAX."""
    module, _, function = command.does.partition(":")
    status: int = getattr(import_module(f"sidestep.cli.{module}"), function)(command)
    return status


def _refused(error: InputError) -> int:
    print(f"sidestep: {error}", file=sys.stderr)
    return 1 if isinstance(error, Infeasible) else 2


def _about_file(error: OSError) -> InputError:
    """A file or folder that the system will not open, make or write: a name that is too long, a missing permission."""
    place = None if error.filename is None else shortened(os.fsdecode(error.filename))
    return InputError(f"this does not work here: {error.strerror or error}", place=place)


def _about_memory(error: Exception) -> InputError | None:
    """Python and XLA each have their own way to say that there is too little memory."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return InputError("this machine has too little memory for this; ask for less at a time")
    return None


def _drop_output() -> None:
    """What is still to be printed goes nowhere, since it cannot go where it should."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
