"""How the VM says that it cannot: one sentence for the user, and the exit status that goes with it."""


class VMError(Exception):
    """The VM failed; the message is one sentence for the user.

    ``status`` is the exit status that a command line ends with; ``option`` is what helps where the VM's memory can be
    given with --memory, in words.
    """

    status = 1

    def __init__(self, message: str, *, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class VMUsageError(VMError):
    """The VM was asked for something it does not offer, and nothing was started."""

    status = 2


class CannotRunError(VMError):
    """This machine cannot run the VM; the message says what is missing and what mends it."""

    status = 3
