"""kiln completion: a script by which a shell completes the words of this command line.

It is generated from the parser, with the names of targets, inspectors and externals that are known
when it is made, so that completing a word starts no process.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tensorkiln.cli import options
from tensorkiln.cli.screen import Screen

# What an argument takes, by the reader that its `type=` is.
_KINDS: dict[object, str] = {
    options.source: "file",
    options.path: "file",
    options.file: "file",
    options.place: "folder",
    options.folder: "folder",
    options.folder_or_stdout: "folder",
    options.array: "array",
    options.target: "target",
    options.external: "external",
    options.inspector: "inspector",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln completion`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _INSTALL
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell that reads the script")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Print the script."""
    script = SHELLS[args.shell](_commands(), _names())
    if args.json:
        screen.document({"shell": args.shell, "script": script})
    else:
        print(script, end="")
    return 0


# -- what there is to complete -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Argument:
    """An option (`names` begins with its short form, if it has one), or without names a positional
    argument. `kind` says what its value is: `flag` (it takes none), `choice`, `file`, `folder`,
    `array` (NAME=FILE), a kind of names (`target`, `external`, `inspector`), or empty: anything."""

    names: tuple[str, ...]
    help: str
    kind: str
    label: str
    choices: tuple[str, ...] = ()
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command, its options and its positional arguments in order."""

    name: str
    help: str
    options: tuple[Argument, ...]
    positional: tuple[Argument, ...]


def _commands() -> list[Command]:
    from tensorkiln.cli.entry import make_parser

    (action,) = (a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    commands = []
    for name, parser in action.choices.items():
        arguments = [_argument(a) for a in parser._actions]
        with_names = tuple(a for a in arguments if a.names)
        without = tuple(a for a in arguments if not a.names)
        commands.append(Command(name, parser.description.rstrip("."), with_names, without))
    return commands


def _argument(action: argparse.Action) -> Argument:
    choices = tuple(map(str, action.choices or ()))
    kind = "choice" if choices else _KINDS.get(action.type, "")
    label = action.metavar or action.dest.upper()
    return Argument(
        tuple(action.option_strings),
        (action.help or "").replace("%%", "%"),
        "flag" if action.nargs == 0 else kind,
        str(label),
        choices,
        isinstance(action, argparse._AppendAction),
    )


def _names() -> dict[str, list[str]]:
    """The names of each kind that has some."""
    from tensorkiln.external.plugins import known_externals
    from tensorkiln.inspectors import known_inspectors
    from tensorkiln.target.kinds import KINDS
    from tensorkiln.target.tags import TAGS

    kinds = [k.name for k in KINDS.values() if k.has_codegen]
    return {
        "target": ["native", *kinds, *TAGS.names(), "help"],
        "external": sorted(known_externals()),
        "inspector": sorted({row.name for row in known_inspectors()}),
    }


# -- bash ------------------------------------------------------------------------------------------

_BASH = r"""# Completion of kiln for bash 4 or newer, by `kiln completion bash`.

# What the option $2 of command $1 takes: sets kind and choices. Fails if it is no such option.
_kiln_option() {
    case $1,$2 in
@OPTIONS@
        *) return 1 ;;
    esac
}

_kiln() {
    local cur=${COMP_WORDS[COMP_CWORD]} words=() word i glued='' command='' kind='' choices=''
    # bash ends words at = and :, too. They are joined again to those that were typed.
    for ((i = 1; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ ${#words[@]} -gt 0 && ($word == [=:] || $glued) ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
        [[ $word == [=:] ]] && glued=yes || glued=''
    done
    local last=$((${#words[@]} - 1))
    cur=${words[last]}
    for ((i = 0; i < last; i++)); do
        [[ ${words[i]} == -* ]] || { command=${words[i]}; break; }
    done
    local value=$cur before=''
    if [[ -z $command ]]; then
        kind=choice choices='@COMMANDS@ --version --help'
    elif [[ $cur == --*=* ]] && _kiln_option "$command" "${cur%%=*}"; then
        value=${cur#*=} before=${cur%%=*}=
    elif ((last > 0)) && _kiln_option "$command" "${words[last - 1]}" && [[ $kind != flag ]]; then
        :
    elif [[ $cur == -* ]]; then
        _kiln_option "$command" ''
        kind=choice
    else
        case $command in
@POSITIONAL@
        esac
    fi
    COMPREPLY=()
    case $kind in
@NAMES@
        file) compopt -o default; return ;;
        folder) compopt -o dirnames; return ;;
        array) [[ $value == *=* ]] && value=${value#*=}; compopt -o default; return ;;
        choice) ;;
        *) return ;;
    esac
    local stripped=''
    for word in = :; do # what readline replaces begins after these
        [[ $COMP_WORDBREAKS == *$word* && $before$value == *$word* ]] || continue
        local part=$before$value
        part=${part%"${part##*$word}"}
        ((${#part} > ${#stripped})) && stripped=$part
    done
    for word in $choices; do
        [[ $word == "$value"* ]] && word=$before$word && COMPREPLY+=("${word#"$stripped"}")
    done
}

complete -F _kiln kiln
"""


def _bash(commands: Sequence[Command], names: dict[str, list[str]]) -> str:
    rows = []
    for command in commands:
        option_names = " ".join(name for a in command.options for name in a.names)
        for a in command.options:
            patterns = " | ".join(f"{command.name},{name}" for name in a.names)
            choices = f" choices='{' '.join(a.choices)}'" if a.choices else ""
            rows.append(f"        {patterns}) kind={a.kind}{choices} ;;")
        rows.append(f"        {command.name},) choices='{option_names}' ;;")
    positional = [
        f"            {c.name}) kind={c.positional[0].kind} "
        f"choices='{' '.join(c.positional[0].choices)}' ;;"
        for c in commands
        if c.positional
    ]
    cases = [f"        {kind}) choices='{' '.join(row)}' ;;" for kind, row in names.items()]
    return _filled(
        _BASH,
        OPTIONS=rows,
        POSITIONAL=positional,
        NAMES=cases,
        COMMANDS=[" ".join(c.name for c in commands)],
    )


# -- zsh -------------------------------------------------------------------------------------------

_ZSH = r"""#compdef kiln
# Completion of kiln for zsh, by `kiln completion zsh`.

@NAMES@

_kiln_array() {
    compset -P '*='
    _files
}

_kiln() {
    local curcontext=$curcontext state state_descr line
    typeset -A opt_args
    _arguments -C \
        '(- *)'{-h,--help}'[show this help message and exit]' \
        '(- *)--version[show the version and exit]' \
        '1:command:->command' \
        '*::argument:->argument'
    case $state in
        command)
            local -a commands=(
@COMMANDS@
            )
            _describe -t commands 'command of kiln' commands
            ;;
        argument)
            curcontext=${curcontext%:*:*}:kiln-$words[1]:
            case $words[1] in
@OPTIONS@
            esac
            ;;
    esac
}

if [[ $funcstack[1] == _kiln ]]; then
    _kiln "$@"
else
    compdef _kiln kiln
fi
"""


def _zsh(commands: Sequence[Command], names: dict[str, list[str]]) -> str:
    described = [
        f"                {_zsh_word(_zsh_colon(c.name) + ':' + c.help)}" for c in commands
    ]
    rows = []
    for command in commands:
        specs = [spec for a in command.options for spec in _zsh_option(a)]
        for a in command.positional:
            specs.append(_zsh_word(f"1:{_zsh_colon(a.label)}:{_zsh_value(a)}"))
        rows.append(f"                {command.name})")
        rows.append("                    _arguments \\")
        rows += [f"                        {spec} \\" for spec in specs[:-1]]
        rows += [f"                        {specs[-1]}", "                    ;;"]
    functions = [
        f"_kiln_{kind}() {{\n    local -a names=({' '.join(row)})\n    compadd -a names\n}}"
        for kind, row in names.items()
    ]
    return _filled(_ZSH, OPTIONS=rows, COMMANDS=described, NAMES=functions)


def _zsh_option(a: Argument) -> Iterable[str]:
    """A spec for each name of an option, which excludes the others, or itself."""
    for name in a.names:
        excluded = "*" if a.repeatable else f"({' '.join(a.names)})"
        about = re.sub(r"([\[\]\\])", r"\\\1", a.help)
        if a.kind == "flag":
            yield _zsh_word(f"{excluded}{name}[{about}]")
        else:
            equals = "=" if name.startswith("--") else "+"
            value = f":{_zsh_colon(a.label)}:{_zsh_value(a)}"
            yield _zsh_word(f"{excluded}{name}{equals}[{about}]{value}")


def _zsh_value(a: Argument) -> str:
    if a.choices:
        return f"({' '.join(a.choices)})"
    actions = {"file": "_files", "folder": "_files -/", "": " "}
    return actions.get(a.kind, f"_kiln_{a.kind}")


def _zsh_colon(text: str) -> str:
    return text.replace(":", "\\:")


def _zsh_word(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- fish ------------------------------------------------------------------------------------------


def _fish(commands: Sequence[Command], names: dict[str, list[str]]) -> str:
    lines = ["# Completion of kiln for fish, by `kiln completion fish`.", "", "complete -c kiln -f"]
    lines += [f"set -g __kiln_{kind} {' '.join(row)}" for kind, row in names.items()]
    first = "complete -c kiln -n __fish_use_subcommand"
    lines.append(f"{first} -l version -d 'show the version and exit'")
    lines.append(f"{first} -s h -l help -d 'show this help message and exit'")
    for command in commands:
        lines.append(f"{first} -a {command.name} -d {_fish_word(command.help)}")
    for command in commands:
        after = f"complete -c kiln -n '__fish_seen_subcommand_from {command.name}'"
        for a in command.options:
            forms = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in a.names]
            value = _fish_value(a)
            lines.append(" ".join(filter(None, [after, *forms, value, "-d", _fish_word(a.help)])))
        lines += [f"{after} {_fish_value(a)[3:]}" for a in command.positional]
    return "\n".join(lines) + "\n"


def _fish_value(a: Argument) -> str:
    """Flags of `complete` for the value of an option; what follows the first one (three characters)
    is for a positional argument."""
    if a.kind == "flag":
        return ""
    if a.choices:
        return f"-x -a {_fish_word(' '.join(a.choices))}"
    values = {"file": "-r -F", "array": "-r -F", "folder": "-x -a '(__fish_complete_directories)'"}
    return values.get(a.kind, f"-x -a '$__kiln_{a.kind}'" if a.kind else "-x")


def _fish_word(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# -- the table -------------------------------------------------------------------------------------

SHELLS: dict[str, Callable[[Sequence[Command], dict[str, list[str]]], str]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
_INSTALL = """
to install it:
  bash  kiln completion bash > ~/.local/share/bash-completion/completions/kiln
  zsh   kiln completion zsh > FOLDER/_kiln, with FOLDER in fpath before compinit
  fish  kiln completion fish > ~/.config/fish/completions/kiln.fish
"""


def _filled(template: str, **parts: Sequence[str]) -> str:
    for name, lines in parts.items():
        template = template.replace(f"@{name}@", "\n".join(lines))
    return template
