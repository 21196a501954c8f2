"""`sidestep completion SHELL`: a script for the shell, made from the commands and their options."""

import re
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from sidestep.cli.arguments import Argument, arguments_of
from sidestep.cli.commands import COMMANDS, Completion
from sidestep.cli.console import say

BASH = """\
_sidestep() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" options="" values=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{commands} --help --version" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}} $before" in
{choices}
  esac
  case "${{COMP_WORDS[1]}}" in
{options}
  esac
  if [ "${{word#-}}" != "$word" ]; then
    COMPREPLY=($(compgen -W "$options --help" -- "$word"))
  else
    COMPREPLY=($(if [ -n "$values" ]; then compgen -W "$values" -- "$word"; else compgen -f -- "$word"; fi))
  fi
}}
complete -o filenames -F _sidestep sidestep"""

ZSH = """\
#compdef sidestep
_sidestep() {{
  local -a commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case "$words[2]" in
{options}
  esac
}}
compdef _sidestep sidestep"""


def completion(asked: Completion) -> int:
    say({"bash": _bash, "zsh": _zsh, "fish": _fish}[asked.shell]())
    return 0


def _options() -> Iterator[tuple[str, list[Argument]]]:
    for name, command in COMMANDS.items():
        yield name, [argument for argument in arguments_of(command) if not argument.metavar]


def _choices(argument: Argument) -> list[str]:
    kinds = [argument.kind, *get_args(argument.kind)]
    literals = [kind for kind in kinds if get_origin(kind) is Literal]
    return [str(choice) for choice in get_args(literals[0])] if literals else []


def _values(name: str) -> str:
    """What may stand in the place of a positional argument; nothing where it is a file or free."""
    found = (_choices(argument) for argument in arguments_of(COMMANDS[name]) if argument.metavar)
    return " ".join(value for choices in found for value in choices)


def _takes_value(argument: Argument) -> bool:
    return argument.kind != bool | None and not (argument.kind is bool and argument.default is False)


def _told(text: str) -> str:
    """A help text without what shells read."""
    return re.sub(r"[\[\]\"'`$\\:()]", "", text.partition(". ")[0].rstrip("."))


def _bash() -> str:
    choices, options = [], []
    for name, found in _options():
        options.append(f'    {name}) options="{" ".join(one.flag for one in found)}" values="{_values(name)}" ;;')
        for one in found:
            if _choices(one):
                words = " ".join(_choices(one))
                choices.append(f'    "{name} {one.flag}") COMPREPLY=($(compgen -W "{words}" -- "$word")); return ;;')
    return BASH.format(commands=" ".join(COMMANDS), choices="\n".join(choices), options="\n".join(options))


def _zsh() -> str:
    commands = [f"    '{name}:{_told((one.__doc__ or '').partition(chr(10))[0])}'" for name, one in COMMANDS.items()]
    options = []
    for name, found in _options():
        told = [f"'{one.flag}[{_told(one.help)}]{_zsh_value(one)}'" for one in found]
        rest = f"({_values(name)})" if _values(name) else "_files"
        options.append(f"    {name}) _arguments {' '.join(told)} '*:value:{rest}' ;;")
    return ZSH.format(commands="\n".join(commands), options="\n".join(options))


def _zsh_value(argument: Argument) -> str:
    if not _takes_value(argument):
        return ""
    choices = _choices(argument)
    return f":value:({' '.join(choices)})" if choices else ":value:_files"


def _fish() -> str:
    lines = []
    for name, command in COMMANDS.items():
        told = _told((command.__doc__ or "").partition("\n")[0])
        lines.append(f'complete -c sidestep -n __fish_use_subcommand -f -a {name} -d "{told}"')
    for name, found in _options():
        if _values(name):
            lines.append(f'complete -c sidestep -n "__fish_seen_subcommand_from {name}" -f -a "{_values(name)}"')
        for one in found:
            choices = _choices(one)
            value = f' -x -a "{" ".join(choices)}"' if choices else " -r" if _takes_value(one) else ""
            seen = f'-n "__fish_seen_subcommand_from {name}"'
            lines.append(f'complete -c sidestep {seen} -l {one.flag[2:]}{value} -d "{_told(one.help)}"')
    return "\n".join(lines)
