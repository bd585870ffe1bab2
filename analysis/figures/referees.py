"""How far from the best: each mode's mean time beside those of what it is measured by, above the bound of all."""

from collections.abc import Mapping, Sequence

from analysis.figures.output import Picture, canvas, explain, panels, table
from analysis.figures.points import Configuration, Points
from analysis.figures.style import FAINT, INK, MODE_STYLES, name_modes, time_unit

_MOST = 20  # configurations of a run
_BEST = {"fastest ring": "best_ring_s", "best schedule": "best_schedule_s", "best policy": "best_policy_s"}

Times = Mapping[str, float]
"""Mean seconds of a collective, by what needs them."""


def of_run(name: str, configurations: Sequence[Configuration], points: Points) -> Picture | None:
    """The figure of a run that has such times: of the first configurations, by the model if it was run."""
    engine = min((point.engine for point in points.values()), key=["model", "emulation"].index)
    drawn: dict[str, tuple[Times, Times, float]] = {}
    collectives = 0
    for one in configurations:
        here = [point for (of, index, _), point in points.items() if (of, index) == (engine, one.index)]
        if not here or len(drawn) == _MOST:
            continue
        rows, collectives = here[0].rows, len(here[0].rows)
        referees_s = {what: float(rows[column].mean()) for what, column in _BEST.items() if rows[column].notna().all()}
        if referees_s:
            modes_s = {point.mode: float(point.completion_s.mean()) for point in here}
            drawn[one.label] = modes_s, referees_s, float(rows["bound_s"].mean())
    if not drawn:
        return None
    how = "by the timing model" if engine == "model" else "measured, what they are held against by the timing model"
    return picture(drawn, collectives=collectives, name=f"{name}-referees", how=how)


def picture(
    settings: Mapping[str, tuple[Times, Times, float]],
    *,
    collectives: int,
    name: str,
    how: str = "by the timing model",
) -> Picture:
    """The figure of some configurations by their labels, a panel each: the times of modes, those of referees, and the
    bound of all, which are means of as many collectives.
    """
    name_modes([mode for modes_s, _, _ in settings.values() for mode in modes_s])
    bars = max(len(modes_s) + len(referees_s) for modes_s, referees_s, _ in settings.values())
    columns = min(2, len(settings))
    with canvas(4.6 * columns, (0.8 + 0.27 * bars) * -(-len(settings) // columns) + 0.4) as figure:
        for axes, (label, (modes_s, referees_s, bound_s)) in zip(
            panels(figure, len(settings), columns=columns), settings.items(), strict=True
        ):
            unit_s, unit = time_unit(max([*modes_s.values(), *referees_s.values()]))
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
        explain(figure, f"{collectives} collectives {how}; dashed: no schedule of any kind is faster")
    rows = [
        {"setting": label, "what": what, "mean_s": seconds, "over_bound": seconds / bound_s}
        for label, (modes_s, referees_s, bound_s) in settings.items()
        for what, seconds in {**modes_s, **referees_s, "bound of all": bound_s}.items()
    ]
    caption = f"How far from the best each mode is, {collectives} collectives {how}."
    return Picture(name=name, caption=caption, figure=figure, data=table(rows))
