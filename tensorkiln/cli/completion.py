"""kiln completion: a script by which a shell completes the words of this command line.

shtab writes it from the parser. It has the names of targets, inspectors and externals that are
known when it is made, so that completing a word starts no process.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from tensorkiln.base.packages import missing_package
from tensorkiln.cli import options
from tensorkiln.cli.screen import Screen

SHELLS = ("bash", "zsh", "fish")
_FILES = ("_shtab_compgen_files", "_files", "(__fish_complete_path (commandline -ct))")
_FOLDERS = ("_shtab_compgen_dirs", "_files -/", "(__fish_complete_directories)")
_INSTALL = """
to install it:
  bash  kiln completion bash > ~/.local/share/bash-completion/completions/kiln
  zsh   kiln completion zsh > FOLDER/_kiln, with FOLDER in fpath before compinit
  fish  kiln completion fish > ~/.config/fish/completions/kiln.fish
"""
# bash parts words at `=`. Here an option and its value are two words, and of NAME=FILE only FILE is
# one.
_BASH_WORDS = r"""
_kiln() {
    local words=() word glued=''
    for word in "${COMP_WORDS[@]:0:COMP_CWORD + 1}"; do
        if [[ $word != = ]]; then
            words+=("$word") glued=''
        else
            [[ ${words[${#words[@]} - 1]} == -* ]] || unset "words[${#words[@]} - 1]"
            glued=yes
        fi
    done
    [[ $glued ]] && words+=('')
    local COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
    _shtab_kiln
}

complete -o bashdefault -F _kiln kiln
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln completion`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _INSTALL
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Print the script."""
    try:
        import shtab
    except ImportError:
        raise missing_package("shtab", "completion") from None
    script = f"{shtab.complete(_parser(), args.shell)}\n"
    if args.shell == "bash":
        script += _BASH_WORDS
    if args.json:
        screen.document({"shell": args.shell, "script": script})
    else:
        print(script, end="")
    return 0


def _parser() -> argparse.ArgumentParser:
    """The parser, in which shtab finds by `complete` what the values of an argument are."""
    from tensorkiln.cli.entry import make_parser

    parser = make_parser()
    shells_of_reader = _values()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for command in commands.choices.values():
        for action in command._actions:
            values = shells_of_reader.get(action.type)
            if values is not None and action.choices is None:
                setattr(action, "complete", values)  # noqa: B010 - which argparse does not declare
    return parser


def _values() -> dict[object, Mapping[str, object]]:
    """How each shell completes the values of an argument, by the reader that its `type=` is."""
    from tensorkiln.external.plugins import known_externals
    from tensorkiln.inspectors import known_inspectors
    from tensorkiln.target.kinds import KINDS
    from tensorkiln.target.lookup import known_names
    from tensorkiln.target.tags import TAGS

    kinds = [k.name for k in KINDS.values() if k.has_codegen]
    files: Mapping[str, object] = dict(zip(SHELLS, _FILES, strict=True))
    folders: Mapping[str, object] = dict(zip(SHELLS, _FOLDERS, strict=True))
    return {
        options.source: files,
        options.path: files,
        options.file: files,
        options.place: folders,
        options.folder: folders,
        options.folder_or_stdout: folders,
        options.array: {
            **files,
            "zsh": "_kiln_array",
            "preamble": {"zsh": "_kiln_array() {\n  compset -P '*='\n  _files\n}"},
        },
        options.target: _names("target", ["native", *kinds, *TAGS.names(), *known_names(), "help"]),
        options.external: _names("external", sorted(known_externals())),
        options.inspector: _names("inspector", sorted({row.name for row in known_inspectors()})),
    }


def _names(kind: str, names: Sequence[str]) -> dict[str, object]:
    text = " ".join(names)
    function = f'_kiln_{kind}() {{\n  compgen -W "{text}" -- "$1"\n}}'
    return {
        "bash": f"_kiln_{kind}",
        "zsh": f"({text})",
        "fish": text,
        "preamble": {"bash": function},
    }
