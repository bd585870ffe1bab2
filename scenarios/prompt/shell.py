"""The prompt itself: Mininet's, with the verbs of `grammar`; whatever goes wrong is a sentence and the prompt again."""

import os
import sys
from pathlib import Path
from typing import Any

from mininet.cli import CLI
from mininet.log import lg

from scenarios.document import did_you_mean, shown
from scenarios.prompt import completion, foreground, history
from scenarios.prompt.bench import Bench
from scenarios.prompt.commands import PromptError
from scenarios.prompt.doer import Doer
from scenarios.prompt.grammar import VERBS, parse
from scenarios.testbed import Failure


class Prompt(CLI):  # type: ignore[misc]
    """A prompt on a bench; runs until exit or Ctrl-D, in its constructor, as Mininet's does.

    `folder` is where captures go; a history of what was typed is read from `remembered`, and `folder` gets the new one.
    """

    def __init__(self, bench: Bench, *, folder: Path, remembered: Path | None) -> None:
        self._bench, self._doer = bench, Doer(bench, folder)
        lg.ch.stream = sys.stdout  # what Mininet says is the answer
        try:
            with history.kept(remembered, folder):
                super().__init__(bench.network.net, stdin=sys.stdin)
        finally:
            self._doer.close()

    @classmethod
    def initReadline(cls) -> None:
        """The history is `history`'s."""

    def onecmd(self, line: str) -> Any:
        """Do what a line says; anything but an end is a sentence and the prompt again."""
        try:
            return super().onecmd(line)
        except (PromptError, *Failure) as error:
            print(error)
        except OSError as error:
            print(f"{shown(line.strip())} came to nothing: {error.strerror or error}")
        except Exception as error:  # one of Mininet's own verbs, which are free with what they raise
            print(f"{shown(line.strip())} came to nothing: {type(error).__name__}: {error}")
        return None

    def default(self, line: str) -> None:
        """A command for a node, or nothing that is known."""
        first, *rest = line.split() or [""]
        if first in self.mn and rest:
            super().default(line)
            return
        if first in self.mn:
            raise PromptError(f"{first} is a node: allowed is {first} CMD, such as {first} ip addr")
        known = [name.removeprefix("do_") for name in self.get_names() if name.startswith("do_")]
        hint = did_you_mean(first, [*known, *self.mn])
        raise PromptError(f"{shown(first)} is no verb and no node: help lists what is allowed{hint}")

    def do_help(self, line: str) -> None:
        """Every verb in one line, or the one that is named."""
        ours = [(name, verb.usage, verb.help) for name, verb in VERBS.items()]
        named = line.split()[:1]
        lines = [entry for entry in (*ours, *completion.MININETS) if not named or entry[0] == named[0]]
        if not lines:
            known = [name for name, *_ in (*ours, *completion.MININETS)]
            raise PromptError(f"{shown(named[0])} has no help: help lists the verbs{did_you_mean(named[0], known)}")
        heads = [f"{name} {usage}".rstrip() for name, usage, _ in lines]
        width = max(map(len, heads))
        for head, (*_, text) in zip(heads, lines, strict=True):
            print(f"  {head.ljust(width)}  {text}")

    def do_pingall(self, line: str) -> None:
        """Ping between all GPUs, with patience for four of the longest delays."""
        patience = line.strip() or str(1 + int(4 * sum(sorted(self._bench.delays_s)[-4:])))
        if not patience.isdecimal() or not 1 <= int(patience) <= 3600:
            raise PromptError(f"{shown(patience)} is no number of seconds: allowed is 1 to 3600")
        self.mn.pingAll(patience)

    def do_xterm(self, line: str, term: str = "xterm") -> None:
        """A terminal on a node."""
        if not os.environ.get("DISPLAY"):
            raise PromptError(
                f"{term} needs a display, and there is none here (the VM has none): g0 CMD runs a command"
            )
        super().do_xterm(line, term)

    def do_EOF(self, line: str) -> Any:
        """Leave."""
        print()
        return self.do_exit(line)

    def do_source(self, line: str) -> None:
        """Run the commands of a file."""
        if not Path(line.strip()).is_file():
            raise PromptError(f"{shown(line.strip())} is no file: allowed is source FILE")
        super().do_source(line)

    def do_switch(self, line: str) -> None:
        """Start or stop a switch, whose ports are then without their shaping."""
        switches = [switch.name for switch in self._bench.fabric.switches]
        match line.split():
            case [name, "start" | "stop"] if name in switches:
                super().do_switch(line)
            case _:
                raise PromptError(f"switch is given {shown(line.strip())}: allowed is switch NAME start, or stop")
        self._bench.reshape()

    def waitForNode(self, node: Any) -> None:
        """Show what a node's command says, and give it what is typed meanwhile, where somebody types."""
        foreground.attend(node, at_terminal=self.isatty())

    def completenames(self, text: str, *_: Any) -> list[str]:
        """What a line can begin with: verbs, and nodes."""
        return completion.beginnings(self._bench.fabric, text)

    def completedefault(self, text: str, line: str, begin: int, *_: Any) -> list[str]:
        """What can stand next in a line."""
        return completion.following(self._bench.fabric, line[:begin].split(), text)


def _verb(name: str) -> Any:
    def do(self: Prompt, line: str) -> None:
        self._doer.do(parse(name, line, self._bench.fabric))

    do.__doc__ = VERBS[name].help
    return do


for _name in VERBS:
    setattr(Prompt, f"do_{_name}", _verb(_name))
