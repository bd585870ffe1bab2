"""What a user should know of a scenario before it runs. This is the one place that commands and the API ask."""

from collections.abc import Sequence

from scenarios.spec import file_notes, physical_limits
from scenarios.spec.scenario import Scenario


def notes_on(configs: Sequence[Scenario], *, emulates: bool) -> tuple[str, ...]:
    """Return a sentence for each value that was rounded, key without effect, assumption of files, and physical limit
    that configurations are beyond; raises SpecError without the files.

    With `emulates` the emulation will run, and limits beyond which it refuses to are left to it.
    """
    return (*file_notes.notes_on(configs), *physical_limits.notes_on(configs, emulates=emulates))
