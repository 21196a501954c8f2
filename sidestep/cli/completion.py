"""`sidestep completion SHELL`: a script for the shell, made from the commands and their options."""

from pathlib import Path
from typing import Literal, NamedTuple, get_args, get_origin

from sidestep.cli.arguments import Argument, arguments_of
from sidestep.cli.commands import COMMANDS, Completion
from sidestep.cli.console import say
from sidestep.models.domains import all_domains

BASH = """\
_sidestep() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words="" files=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{first}"
  else
    case "${{COMP_WORDS[1]}} $before" in
{values}
      *)
        case "${{COMP_WORDS[1]}} ${{word:0:1}}" in
{commands}
        esac ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [ "$files" ]; then
    compopt -o filenames 2>/dev/null
    local IFS=$'\\n'
    COMPREPLY+=($(compgen -f -- "$word"))
  fi
}}
complete -F _sidestep sidestep"""

ZSH = """\
#compdef sidestep
_sidestep() {{
  local -a commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    if [[ $PREFIX == -* ]]; then
      compadd -- --help --version
    else
      _describe command commands
    fi
    return
  fi
  case "$words[2]" in
{options}
  esac
}}
compdef _sidestep sidestep"""

FISH = """\
function __sidestep_is
    set -l words (commandline -opc)
    test (count $words) -gt 1; and test "$words[2]" = $argv[1]
end
complete -c sidestep -f
complete -c sidestep -n 'test (count (commandline -opc)) -eq 1' -l help -d 'List all commands'
complete -c sidestep -n 'test (count (commandline -opc)) -eq 1' -l version -d 'Tell the version'"""


class Offer(NamedTuple):
    """What may stand in one place: some words, names of files, or, where both are missing, what only the user knows."""

    words: list[str]
    files: bool


class Flag(NamedTuple):
    flag: str
    told: str
    value: Offer | None  # None: it takes no value


def completion(asked: Completion) -> int:
    say({"bash": _bash, "zsh": _zsh, "fish": _fish}[asked.shell]())
    return 0


def _flags(command: type) -> list[Flag]:
    """Every option of a command."""
    options = [argument for argument in arguments_of(command) if not argument.metavar]
    found = [Flag(flag, _first_sentence(one.help), _value(one)) for one in options for flag in _spellings(one)]
    found.append(Flag("--help", "Show the usual options", None))
    if any(one.rare for one in options):
        found.append(Flag("--help-all", "Show every option", None))
    return found


def _spellings(argument: Argument) -> list[str]:
    return [argument.flag, f"--no-{argument.flag[2:]}"] if argument.kind == bool | None else [argument.flag]


def _value(argument: Argument) -> Offer | None:
    is_switch = argument.kind == bool | None or (argument.kind is bool and argument.default is False)
    return None if is_switch else _offer(argument)


def _offer(argument: Argument) -> Offer:
    kinds = [argument.kind, *get_args(argument.kind)]
    words = [str(word) for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if argument.kind is bool:
        words = ["True", "False"]
    if argument.metavar == "MODEL":
        words = list(all_domains())
    is_text = str in kinds or Path in kinds
    return Offer(words, is_text)


def _without_flag(command: type) -> Offer:
    """What may stand in the places of the arguments without a flag."""
    offers = [_offer(argument) for argument in arguments_of(command) if argument.metavar]
    return Offer([word for offer in offers for word in offer.words], any(offer.files for offer in offers))


def _first_sentence(text: str) -> str:
    return text.partition("\n")[0].partition(". ")[0].rstrip(".")


def _told(command: type) -> str:
    return _first_sentence(command.__doc__ or "")


def _bash() -> str:
    values, commands = [], []
    for name, command in COMMANDS.items():
        flags = _flags(command)
        for one in flags:
            if one.value is not None:
                values.append(f'      "{name} {one.flag}") {_bash_offer(one.value)} ;;')
        listed = Offer([one.flag for one in flags], False)
        commands.append(f'          "{name} -") {_bash_offer(listed)} ;;')
        commands.append(f'          "{name} "*) {_bash_offer(_without_flag(command))} ;;')
    first = " ".join([*COMMANDS, "--help", "--version"])
    return BASH.format(first=first, values="\n".join(values), commands="\n".join(commands))


def _bash_offer(offer: Offer) -> str:
    return f'words="{" ".join(offer.words)}" files={"yes" if offer.files else ""}'


def _zsh() -> str:
    commands = [f"    {_zsh_quoted(f'{name}:{_told(command)}')}" for name, command in COMMANDS.items()]
    options = []
    for name, command in COMMANDS.items():
        told = [_zsh_quoted(f"{one.flag}[{_zsh_plain(one.told)}]{_zsh_value(one.value)}") for one in _flags(command)]
        rest = _zsh_quoted(f"*:value:{_zsh_offer(_without_flag(command))}")
        options.append(f"    {name}) _arguments {' '.join([*told, rest])} ;;")
    return ZSH.format(commands="\n".join(commands), options="\n".join(options))


def _zsh_value(value: Offer | None) -> str:
    return "" if value is None else f":value:{_zsh_offer(value)}"


def _zsh_offer(offer: Offer) -> str:
    words = f"({' '.join(offer.words)})" if offer.words else ""
    if words and offer.files:
        return f' _alternative "words:name:{words}" "files:file:_files"'
    return words or ("_files" if offer.files else " ")


def _zsh_plain(text: str) -> str:
    """A text that may stand in brackets, where these and colons have a meaning."""
    return "".join(f"\\{letter}" if letter in "\\[]:" else letter for letter in text)


def _zsh_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish() -> str:
    lines = [FISH]
    for name, command in COMMANDS.items():
        told = _fish_quoted(_told(command))
        lines.append(f"complete -c sidestep -n 'test (count (commandline -opc)) -eq 1' -a {name} -d {told}")
    for name, command in COMMANDS.items():
        asked = f"complete -c sidestep -n '__sidestep_is {name}'"
        place = _without_flag(command)
        if place.words:
            lines.append(f"{asked} -a '{' '.join(place.words)}'")
        if place.files:
            lines.append(f"{asked} -F")
        for one in _flags(command):
            lines.append(f"{asked} -l {one.flag[2:]}{_fish_value(one.value)} -d {_fish_quoted(one.told)}")
    return "\n".join(lines)


def _fish_value(value: Offer | None) -> str:
    if value is None:
        return ""
    words = " ".join(word + "\\t" for word in value.words)  # without a text, in place of the option's own
    return f" -r{' -F' if value.files else ' -f'}" + (f" -a '{words}'" if words else "")


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
