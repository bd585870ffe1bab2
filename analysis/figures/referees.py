"""The distance of each mode from the best: its mean time next to those of referees and the bound on any schedule.

Referees are solutions that modes are compared with: the fastest ring, the best schedule and the best policy.
"""

from collections.abc import Mapping, Sequence

from analysis.figures.output import Picture, canvas, csv_text, explain, panels
from analysis.figures.run_points import Configuration, Points
from analysis.figures.style import FAINT, INK, MODE_STYLES, name_modes, typical_unit

_MOST = 20  # configurations of a run that are drawn
_BEST = {"fastest ring": "best_ring_s", "best schedule": "best_schedule_s", "best policy": "best_policy_s"}

Times = Mapping[str, float]
"""Mean seconds of a collective, by the name of a mode or a referee."""


def of_run(name: str, configurations: Sequence[Configuration], points: Points) -> Picture | None:
    """Draw the first configurations of a run that stores referees' times; None if it stores none.

    The times of modes are those of the model if it was run, otherwise the measured ones.
    """
    engine = min((point.engine for point in points.values()), key=["model", "emulation"].index)
    settings: dict[str, tuple[Times, Times, float]] = {}
    collectives, found = 0, 0
    for one in configurations:
        here = [point for point in points.values() if point.engine == engine and point.configuration is one]
        found += bool(here)
        if not here or len(settings) == _MOST:
            continue
        rows, collectives = here[0].rows, len(here[0].rows)
        referees_s = {what: float(rows[column].mean()) for what, column in _BEST.items() if rows[column].notna().all()}
        if referees_s:
            modes_s = {point.mode: float(point.completion_s.mean()) for point in here}
            settings[one.label] = modes_s, referees_s, float(rows["bound_s"].mean())
    if not settings:
        return None
    how = "by the timing model" if engine == "model" else "measured, referees by the timing model"
    how += f", the first {_MOST} of {found} configurations" * (len(settings) == _MOST < found)
    return picture(settings, collectives=collectives, name=f"{name}-referees", how=how)


def picture(
    settings: Mapping[str, tuple[Times, Times, float]],
    *,
    collectives: int,
    name: str,
    how: str = "by the timing model",
) -> Picture:
    """Draw configurations, by their labels, in a panel each: the times of modes, those of referees, and the bound.

    All times are means over `collectives` collectives.
    """
    name_modes([mode for modes_s, _, _ in settings.values() for mode in modes_s])
    bars = max(len(modes_s) + len(referees_s) for modes_s, referees_s, _ in settings.values())
    columns = min(2, len(settings))
    unit_s, unit = typical_unit(
        [max([*modes_s.values(), *best_s.values()]) for modes_s, best_s, _ in settings.values()]
    )
    with canvas(4.6 * columns, (0.8 + 0.27 * bars) * -(-len(settings) // columns) + 0.4) as figure:
        for axes, (label, (modes_s, referees_s, bound_s)) in zip(
            panels(figure, len(settings), columns=columns), settings.items(), strict=True
        ):
            colours = [MODE_STYLES[mode].colour for mode in modes_s] + [FAINT] * len(referees_s)
            names: Sequence[str] = [*modes_s, *referees_s]
            times = [seconds / unit_s for seconds in (*modes_s.values(), *referees_s.values())]
            axes.barh(range(len(names)), times, color=colours, edgecolor=INK, linewidth=0.5, height=0.7)
            axes.axvline(bound_s / unit_s, color=INK, linestyle="--", linewidth=1)
            axes.set_yticks(range(len(names)), names)
            axes.invert_yaxis()
            axes.grid(False, axis="y")
            axes.grid(True, axis="x")
            axes.set_xlabel(f"mean time of a collective ({unit})")
            axes.set_title(label)
        explain(figure, f"{collectives:,} collectives, {how}; dashed: lower bound on the time of any schedule")
    rows = [
        {"setting": label, "what": what, "mean_s": seconds, "over_bound": seconds / bound_s}
        for label, (modes_s, referees_s, bound_s) in settings.items()
        for what, seconds in {**modes_s, **referees_s, "bound of all": bound_s}.items()
    ]
    caption = f"Mean time of each mode compared with the best known, {collectives:,} collectives, {how}."
    return Picture(name=name, caption=caption, figure=figure, data=csv_text(rows))
