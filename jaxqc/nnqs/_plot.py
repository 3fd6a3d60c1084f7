"""Figures of what selected CI found: the extrapolation, and how a network learned."""

from pathlib import Path

from jaxqc._checks import checked_path
from jaxqc.nnqs._selected import SelectedCI
from jaxqc.nnqs._solve import Solution

NAME = "jaxqc.nnqs.plot"


def plot(found: SelectedCI | Solution, path=None):
    """E_CI against E_PT2 of all sets with the extrapolated energies, and the network's energy if there is one.

    Args:
        found: what `selected_ci` or `solve` returned.
        path: file to write, in the format of its ending; None for none.

    Returns:
        The Matplotlib figure.

    Raises:
        TypeError: `found` is something else.
        ValueError: no figure can be written to `path`.
        ImportError: Matplotlib is not installed.
    """
    if not isinstance(found, SelectedCI | Solution):
        raise TypeError(f"Argument found of {NAME} must be a result of selected CI, but it is {type(found)}.")
    path = checked_figure(path)
    from matplotlib.figure import Figure

    steps = [r for r in found.history if r["kind"] == "train"] if isinstance(found, Solution) else []
    figure = Figure(figsize=(9 if steps else 4.8, 3.6), layout="constrained")
    panels = figure.subplots(1, 2 if steps else 1, squeeze=False)[0]
    _extrapolation(panels[0], found)
    if steps:
        _training(panels[1], found, steps)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def checked_figure(path) -> Path | None:
    """The path of a figure that can be written; None for None.

    Raises:
        TypeError, ValueError: there can be no figure.
        ImportError: Matplotlib is not installed.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ModuleNotFoundError as error:
        raise ImportError(
            "Figures need Matplotlib; install it with `pip install matplotlib`, or jaxqc with the extra: "
            "`pip install 'jaxqc[plots]'`."
        ) from error
    path = checked_path(path, "path", NAME)
    endings = sorted(FigureCanvasBase.get_supported_filetypes())
    if path is not None and path.suffix[1:].lower() not in endings:
        raise ValueError(
            f"Argument path of {NAME} is {str(path)!r}; it must be a file that ends in .{', .'.join(endings)}."
        )
    return path


def _sets(found):
    """(E_CI, E_PT2) of each state on each set."""
    if isinstance(found, SelectedCI):
        return [[(p.e_ci, p.e_pt2), *(state[:2] for state in p.excited)] for p in found.history]
    records = [r for r in found.history if r["kind"] == "set"]
    return [[(r["e_ci"], r["e_pt2"]), *(state[:2] for state in r.get("excited", ()))] for r in records]


def _extrapolation(axis, found):
    sets = _sets(found)
    for k, state in enumerate(found.states):
        points = [of_set[k] for of_set in sets if k < len(of_set)][-6:]
        e_ci, e_pt2 = zip(*points, strict=True)
        (line,) = axis.plot(e_pt2, e_ci, "o-", markersize=4, linewidth=1, label=f"state {k}")
        color = line.get_color()
        axis.plot((e_pt2[-1], 0.0), (e_ci[-1], state.e_extrapolated), ":", color=color)
        axis.errorbar(0.0, state.e_extrapolated, state.error, fmt="s", color=color, capsize=3)
    axis.set(xlabel="$E_{PT2}$ / Hartree", ylabel="$E_{CI}$ / Hartree", title="extrapolation")
    axis.ticklabel_format(useOffset=False)
    if len(found.states) > 1:
        axis.legend(frameon=False)


def _training(axis, found, steps):
    number = [r["step"] for r in steps]
    axis.plot(number, [r["energy"] for r in steps], linewidth=1, label="network")
    sets = [r for r in found.history if r["kind"] == "set"]
    axis.step([*(r["step"] for r in sets), number[-1]], [*(r["e_ci"] for r in sets), found.e_ci], "k", where="post",
              linewidth=1, label="$E_{CI}$, the bound on the set")  # fmt: skip
    axis.axhline(found.e_extrapolated, color="0.5", linestyle=":", label="extrapolated")
    lowest, highest = found.e_extrapolated, max(r["energy"] for r in steps[len(steps) // 4 :])
    margin = 0.05 * max(highest - lowest, 1e-6)
    axis.set(xlabel="step", ylabel="energy / Hartree", title="training", ylim=(lowest - margin, highest + margin))
    axis.ticklabel_format(useOffset=False)
    axis.legend(frameon=False)
