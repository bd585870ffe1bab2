"""What a user should know of a scenario before it runs. This is the one place that commands and the API ask."""

from collections.abc import Sequence

from scenarios.spec import file_notes, physical_limits
from scenarios.spec.pieces import CANDIDATES
from scenarios.spec.scenario import Scenario
from topologies.errors import list_first


def notes_on(configs: Sequence[Scenario], *, emulates: bool) -> tuple[str, ...]:
    """Return a sentence for each value that was rounded or chosen, key without effect, assumption of files, and
    physical limit that configurations are beyond; raises SpecError without the files.

    With `emulates` the emulation will run, and limits beyond which it refuses to are left to it.
    """
    of_files, of_limits = file_notes.notes_on(configs), physical_limits.notes_on(configs, emulates=emulates)
    return (*of_files, *_chosen_pieces(configs), *of_limits)


def _chosen_pieces(configs: Sequence[Scenario]) -> list[str]:
    """Return a sentence if the timing model has chosen to split the blocks of some configurations."""
    chosen = [config for config in configs if config.collective.chooses]
    numbers = sorted({config.collective.pieces or 1 for config in chosen})
    if numbers in ([], [1]):
        return []
    if len(numbers) == 1:
        number = str(numbers[0])
    else:
        by_number = [[one.label for one in chosen if one.collective.pieces == number] for number in numbers]
        words = [f"{number} at {list_first(labels, 2)}" for number, labels in zip(numbers, by_number, strict=True)]
        number = "; ".join(words)
    among = f"the fastest of {CANDIDATES[0]} to {CANDIDATES[-1]} by the timing model at the links' mean rates"
    return [f"collective.pieces: {number}, {among}; --set collective.pieces=N sets another number"]
