"""The parser of every command's options: a mistake is one sentence that names what was typed and what to type instead.

It recognizes what a shell or the habit of another tool makes of a value: words that lack quotes, lists with spaces in
place of commas, `--set key value`, and an unquoted ``>``, which a shell takes for the name of a file.
"""

import argparse
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from topologies.errors import did_you_mean, format_value

BAD_USAGE = 2
"""The exit status for a wrong use of a command."""

_TIMES = r"[num]s|µs|μs|s|[mu]?sec|seconds?|min|minutes?|h|hours?"
_UNITS = rf"(?:{_TIMES}|[kKMGT]?i?[bB]|[kKMGT]?(?:bit|bits|b)/s|[kKMGT]?bps|[kKMGT])"
_UNIT = re.compile(rf"{_UNITS}(?:,.*)?", re.IGNORECASE)
_LONG = re.compile(r"--?[A-Za-z]")  # an option, and not a negative number or a dash in a range
_LIST = re.compile(r"\[,|separated by commas")
_NODE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,8}")
_IN_SITE = re.compile(r"g\d+|s\d+[bnlp]\d+")
_LESS_CLOSE = 0.75  # of options: with argparse's few letters, words of different meaning are close
_NUMBER = re.compile(r"[0-9.,]+")
_WHOLE = re.compile(r"[-+]?[0-9]{1,20}")


class CommandParser(argparse.ArgumentParser):
    """A parser that takes no abbreviations, and reports a mistake in one sentence, with exit status 2.

    `is_operand` tells whether a word can be the command's positional argument, such as a scenario's name. `instead` has
    for options of similar commands, which this one lacks, what it has instead: {"--gpus": "--hosts"}.
    """

    def __init__(
        self,
        *args: Any,
        is_operand: Callable[[str], bool] = lambda _: False,
        instead: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self._is_operand, self._instead = is_operand, instead or {}
        self.register("type", int, _whole)
        self.register("type", float, _number)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; first exit with status 2 for words that the shell has split or taken away."""
        words = sys.argv[1:] if args is None else list(args)
        if mistake := self._split_by_the_shell(words):
            self.exit(BAD_USAGE, f"{self.prog}: {mistake}\n")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with status 2."""
        message = re.sub(r"^argument ((?:-\w/)?--?[\w-]+)(?:/--[\w-]+)*: ", r"\1: ", message)
        message = re.sub(r": ignored explicit argument (.*)", r": takes no value, and \1 was given", message)
        self.exit(BAD_USAGE, f"{self.prog}: {self._with_hint(message)}; {self.prog} --help lists what is allowed\n")

    def unknown(self, option: str) -> str:
        """Return a hint for an option that does not exist, to be appended to the message; "" without any."""
        known = [name for action in self._actions for name in action.option_strings]
        return did_you_mean(option.replace("_", "-"), known, cutoff=_LESS_CLOSE)

    def _with_hint(self, message: str) -> str:
        if stranger := re.match(r"unrecognized arguments: (-\S+)", message):
            option = stranger[1].partition("=")[0]
            here = self._instead.get(option)
            hint = f" (did you mean {here}?)" if here else self.unknown(option)
            return f"there is no option {option}{hint}"
        if missing := re.match(r"the following arguments are required: (.*)", message):
            return f"{missing[1]} is missing"
        if strangers := re.match(r"unrecognized arguments: (.*)", message):
            return f"{format_value(strangers[1])} is one argument too many"
        if lacking := re.match(r"((?:-\w/)?--?[\w-]+): expected (one|\d+) arguments?", message):
            name = lacking[1].rpartition("/")[2]
            usage = next(_usage(action) for action in self._actions if name in action.option_strings)
            return f"{lacking[1]}: its value is missing; allowed: {usage}"
        return message

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = list(map(str, action.choices))
            hint = did_you_mean(str(value), choices)
            raise argparse.ArgumentError(
                action, f"{format_value(value)} is not known; allowed: {', '.join(choices)}{hint}"
            )

    # --- what the shell does to words ---------------------------------------------------------------------------------

    def _split_by_the_shell(self, words: Sequence[str]) -> str:
        """Return the mistake in the first option whose value the shell has split or cut; "" without any."""
        actions = {name: action for action in self._actions for name in action.option_strings}
        words = words[: words.index("--")] if "--" in words else words
        for at, word in enumerate(words):
            option, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
            action, after = actions.get(option), list(words[at + 1 :])
            if action is None or action.nargs is not None or not (equals or after):
                continue
            value = value if equals else after.pop(0)
            if not equals and _LONG.match(value):
                continue  # argparse reports the missing value
            of_command = action.metavar == "COMMAND"  # whose own options are words of it
            ends = [other.partition("=")[0] in actions if of_command else bool(_LONG.match(other)) for other in after]
            typed = _Typed(option, action, value, after[: [*ends, True].index(True)], self._is_operand)
            if mistake := typed.mistake():
                return mistake
        return ""


@dataclass(frozen=True)
class _Typed:
    """An option as it was typed: its value, and the `rest` of the words up to the next option."""

    option: str
    action: argparse.Action
    value: str
    rest: Sequence[str]
    is_operand: Callable[[str], bool]

    def mistake(self) -> str:
        """Return what the shell did to the value, and how to type it; "" if it did nothing."""
        if self._metavar == "LINK":
            return self._cut_at_arrow()
        if not self.rest:
            return ""
        if self._metavar == "COMMAND":
            return self._split_command()
        return self._split_quantity() or self._split_assignment() or self._split_list() or self._second_number()

    @property
    def _metavar(self) -> str:
        return str(self.action.metavar or "")

    def _passes(self, words: Sequence[str], allowed: str) -> str:
        typed = " ".join([self.option, *words])
        return f"{typed}: the shell passes {len(words)} words; allowed: {allowed}"

    def _split_command(self) -> str:
        if re.search(r"\s", self.value) or all(map(self.is_operand, self.rest)):
            return ""
        words = [self.value, *self.rest]
        return self._passes(words, f"quotes around the command, {self.option} {_quoted(*words)}")

    def _split_quantity(self) -> str:
        ends = [index for index, word in enumerate(self.rest, 1) if _UNIT.fullmatch(word)]
        if not ends or not re.search(r"\d$", self.value):
            return ""
        words = [self.value, *self.rest[: ends[-1]]]
        if self.action.type in (int, float):
            return f"{self.option} {' '.join(words)}: takes no unit; allowed: a number, {_usage(self.action)}"
        return self._passes(words, f"quotes around them, {self.option} {_quoted(*words)}")

    def _split_assignment(self) -> str:
        key, equals, given = self.value.partition("=")
        first = self.rest[0]
        if not self._metavar.startswith("TABLE.KEY") or self.is_operand(first):
            return ""
        if equals and given:
            each = f"{self.option} {_if_needed(self.value)} {self.option} {_if_needed(first)}"
            is_assignment = re.match(r"[a-z_.]+=.", first)
            return f"{self.option} {self.value} {first}: sets one key; allowed: {each}" if is_assignment else ""
        text = f"{key.rstrip(':')}={' '.join(word for word in self.rest if word != '=').lstrip('=')}"
        return self._passes([self.value, *self.rest], f"{self.option} {_if_needed(text)}")

    def _split_list(self) -> str:
        if not (_LIST.search(f"{self._metavar} {self.action.help}") or self._metavar.endswith("=A,B")):
            return ""
        of_numbers = self.value.rpartition("=")[2][:1].isdigit()
        fits = [not self.is_operand(word) and word[:1].isdigit() == of_numbers for word in self.rest]
        words = [self.value, *self.rest[: [*fits, False].index(False)]]
        if len(words) == 1:
            return ""
        listed = ",".join(part for word in words for part in word.split(",") if part)
        return self._passes(words, f"commas without spaces, {self.option} {listed}")

    def _second_number(self) -> str:
        if not (_NUMBER.fullmatch(self.rest[0]) and self.value[:1].isdigit()):
            return ""
        return f"{self.option} {self.value} {self.rest[0]}: takes one value; allowed: {_usage(self.action)}"

    def _cut_at_arrow(self) -> str:
        """Return the mistake of a link without ">", which the shell may have taken for a redirection."""
        if not _NODE.fullmatch(self.value):
            return ""
        made = _redirected_to()
        if made and not (_IN_SITE.fullmatch(made) or _shape(made) == _shape(self.value)):
            made = None
        took = f"has made the file {made} of the rest" if made else "takes an unquoted > for the name of a file"
        allowed = f'quotes around it, {self.option} "{self.value}>{made or "NODE"}", or {self.value}:{made or "NODE"}'
        return f"{self.option} {self.value}: a link is FROM>TO, and the shell {took}; allowed: {allowed}"


def _whole(text: str) -> int:
    if _WHOLE.fullmatch(text):
        return int(text)
    plain = re.sub(r"(?<=\d)[,_](?=\d{3}\b)", "", text)  # thousands
    is_whole = re.fullmatch(r"\d{1,15}(\.\d{1,15})?([eE]\d{1,2})?", plain) and float(plain).is_integer()
    hint = f" (did you mean {int(float(plain))}?)" if is_whole else ""
    raise argparse.ArgumentTypeError(f"{format_value(text)} is not a whole number{hint}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{format_value(text)} is not a number") from None


def _usage(action: argparse.Action) -> str:
    metavar = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    name = next((name for name in action.option_strings if name.startswith("--")), action.option_strings[-1])
    return f"{name} {metavar if isinstance(metavar, str) else ' '.join(metavar)}"


def _quoted(*words: str) -> str:
    text = " ".join(words)
    return f'"{text}"' if not re.search(r"[\"$`\\!]", text) else shlex.quote(text)


def _if_needed(text: str) -> str:
    return text if re.fullmatch(r"[\w@%+=:,./-]+", text) else _quoted(text)


def _redirected_to() -> str | None:
    """Return the name of the file that is standard output; None if that is no file."""
    try:
        return Path("/proc/self/fd/1").readlink().name if stat.S_ISREG(os.fstat(1).st_mode) else None
    except OSError:
        return None


def _shape(name: str) -> str:
    """Return a node's name with its numbers replaced, which nodes of one kind have in common."""
    return re.sub(r"\d+", "0", name)
