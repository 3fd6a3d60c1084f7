"""Tables and plots of `xc_figures.py`."""

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

TITLES = {
    "scaling": "Time against size",
    "speedup": "Speed-up over a dense baseline and over PySCF",
    "accuracy": "Accuracy against grid level",
    "breakdown": "What each part of the screening gains",
    "activation": "Cost of the lists",
    "kernels": "Density, functional and potential",
}
STAGES = {
    "DenseXC": "dense matrices (plain JAX)",
    "fused": "fused kernels, no screening",
    "values": "+ lists by values",
    "weights": "+ weights in the lists",
    "cuts": "+ products cut by sorted bounds",
}


def number(value):
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return "" if value is None else str(value)


def table(head, rows):
    lines = [head, ["---"] * len(head), *([number(x) for x in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def clock(settings):
    """CPU time on a CPU, which other work does not stretch; wall time on a GPU."""
    return "cpu" if settings["on_cpu"] else "wall"


def exponent(rows, t, low=100, high=810):
    """Slope of log time against log atoms, by least squares over the systems from `low` to `high` atoms."""
    kept = [row for row in rows if low <= row["atoms"] <= high]
    if len(kept) < 2:
        return None
    x, y = np.log([row["atoms"] for row in kept]), np.log([row[t] for row in kept])
    return float(np.polyfit(x, y, 1)[0])


def figure_of(draw):
    """A figure with one axis, drawn by `draw(axis)`."""
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    draw(axis)
    return figure


def bars(axis, groups, series, values, label):
    """Bars of `values[series][group]`."""
    width = 0.8 / len(series)
    for k, name in enumerate(series):
        heights = [np.nan if v is None else v for v in values[name]]
        axis.bar(np.arange(len(groups)) + (k + 0.5) * width - 0.4, heights, width, label=name)
    axis.set_xticks(np.arange(len(groups)), groups, fontsize=8)
    axis.set_ylabel(label)
    axis.legend(fontsize=7)


def scaling(rows, settings):
    t = clock(settings)

    def draw(axis):
        atoms = np.array([row["atoms"] for row in rows], float)
        ours = np.array([row[t] for row in rows])
        dense = [(row["atoms"], row[f"dense_{t}"]) for row in rows if f"dense_{t}" in row]
        axis.loglog(atoms, ours, "o-", label="jaxqc")
        axis.loglog(*zip(*dense, strict=True), "s-", label="no screening")
        axis.loglog(atoms, ours[-1] * atoms / atoms[-1], "k:", label="linear")
        axis.loglog(atoms, dense[-1][1] * (atoms / dense[-1][0]) ** 3, "k--", label="cubic")
        axis.set(xlabel="atoms", ylabel=f"{t} seconds a step", title="polyglycine", ylim=(0.3 * ours.min(), None))
        axis.set_xticks(atoms, [f"{n:.0f}" for n in atoms], minor=False)
        axis.set_xticks([], minor=True)
        axis.legend(fontsize=7)

    head = ["system", "atoms", "functions", "points", "step, wall s", "step, CPU s", "no screening, CPU s"]
    keys = ["system", "atoms", "functions", "points", "wall", "cpu", "dense_cpu"]
    slope = exponent(rows, t)
    text = (
        ""
        if slope is None
        else f"\n\nExponent between 100 and 800 atoms: **{slope:.2f}** in {t} time (bar: below 1.15)."
    )
    return table(head, [[row.get(k) for k in keys] for row in rows]) + text, figure_of(draw)


def ratio(row, other, t):
    return row[f"{other}_{t}"] / row[t] if f"{other}_{t}" in row else None


def speedup(rows, settings):
    t = clock(settings)
    head = ["system", "atoms", "functions", "points", "jaxqc, wall s", "CPU s", "DenseXC, CPU s", "times"]
    head += ["PySCF, wall s", "CPU s", "times, wall", "times, CPU", "energy, Ha", "potential"]
    lines = []
    for row in rows:
        line = [row[k] for k in ("system", "atoms", "functions", "points", "wall", "cpu")]
        line += [row.get("dense_cpu"), ratio(row, "dense", t), row.get("pyscf_wall"), row.get("pyscf_cpu")]
        line += [ratio(row, "pyscf", "wall"), ratio(row, "pyscf", "cpu"), row.get("difference"), row.get("vdifference")]
        lines.append(line)

    def draw(axis):
        values = {
            "over DenseXC": [ratio(row, "dense", t) for row in rows],
            "over PySCF": [ratio(row, "pyscf", t) for row in rows],
        }
        bars(axis, [row["system"] for row in rows], list(values), values, "times faster")
        axis.set_yscale("log")
        axis.axhline(1.0, color="k", linewidth=0.7)

    text = (
        "\n\nThe last columns are the differences from PySCF. DenseXC spends most of its time on orbital values; for "
        "the kernels without screening see below. It is left out where it would take too long."
    )
    return table(head, lines) + text, figure_of(draw)


def accuracy(rows, settings):
    def draw(axis):
        for name in dict.fromkeys(row["system"] for row in rows):
            mine = [row for row in rows if row["system"] == name]
            axis.semilogy([r["level"] for r in mine], [max(r["error"], 1e-13) for r in mine], "o-", label=name)
        axis.axhline(1e-3, color="k", linewidth=0.7, linestyle=":")
        axis.set(xlabel="grid level", ylabel="error, Hartree an atom")
        axis.legend(fontsize=7)

    head = ["system", "level", "points", "error, Ha an atom", "PySCF's error, Ha an atom", "between the two, Ha"]
    keys = ["system", "level", "points", "error", "pyscf_error", "difference"]
    return table(head, [[row[k] for k in keys] for row in rows]), figure_of(draw)


def breakdown(rows, settings):
    t = clock(settings)
    systems = list(dict.fromkeys(row["system"] for row in rows))
    times = {(row["system"], row["stage"]): row[t] for row in rows}
    head = ["system", "stage", "functions a row", "wall s", "CPU s", "gain", "all gains", "error, Ha an atom"]
    lines = []
    for name in systems:
        mine = [row for row in rows if row["system"] == name]
        for k, row in enumerate(mine):
            gain = mine[k - 1][t] / row[t] if k else None
            line = [name, STAGES[row["stage"]], row["listed"], row["wall"], row["cpu"], gain]
            lines.append([*line, mine[0][t] / row[t], row["error"]])

    def draw(axis):
        values = {s: [times[n, "DenseXC"] / times[n, s] if (n, s) in times else None for n in systems] for s in STAGES}
        bars(axis, systems, list(STAGES), values, "times faster than DenseXC")
        axis.legend(axis.get_legend_handles_labels()[0], list(STAGES.values()), fontsize=7)
        axis.set_yscale("log")

    return table(head, lines), figure_of(draw)


def activation(rows, settings):
    t, cycles = clock(settings), settings["cycles"]
    head = ["system", "atoms", "functions", "points", "lists, CPU s", "step, CPU s", f"share of {cycles} steps"]
    keys = ["system", "atoms", "functions", "points", "lists_cpu", "step_cpu"]
    lines = [[*(row[k] for k in keys), f"{100 * row[t]:.2f} %"] for row in rows]

    def draw(axis):
        values = {"lists": [100 * row[t] for row in rows]}
        bars(axis, [row["system"] for row in rows], ["lists"], values, f"% of {cycles} steps")
        axis.axhline(3.0, color="k", linewidth=0.7, linestyle=":")

    return table(head, lines) + "\n\nBar: below 3 %.", figure_of(draw)


def kernels(rows, settings):
    head = ["system", "functional", "density, s", "without cuts", "functional, s", "potential, s", "without cuts"]
    keys = ["density", "density_uncut", "functional_time", "potential", "potential_uncut"]
    lines = [[row["system"], row["functional"], *(row[k] for k in keys)] for row in rows]

    def draw(axis):
        groups = [f"{row['system']}\n{row['functional']}" for row in rows]
        values = {k: [row[k] for row in rows] for k in keys}
        bars(axis, groups, keys, values, "seconds")

    return table(head, lines), figure_of(draw)


def write(found, path):
    """The page of all results, and a figure for each part beside it."""
    folder = path.parent / "figures"
    folder.mkdir(exist_ok=True)
    lines = [
        "# Exchange and correlation: the figures of the MakoXC paper",
        "",
        "Written by `python experiments/xc_figures.py`; its docstring says what is measured.",
    ]
    for part, title in TITLES.items():
        if part not in found:
            continue
        settings, rows = found[part]["settings"], found[part]["rows"]
        text, figure = globals()[part](rows, settings)
        name = f"{path.stem}_{part}.png"
        figure.savefig(folder / name, dpi=100)
        plt.close(figure)
        level = settings["level_scaling" if part in ("scaling", "activation") else "level"]
        about = f"{settings['date']}, {settings['device']}, {settings['basis']}"
        about += "" if part == "kernels" else f", {settings['xc']}"
        about += "" if part == "accuracy" else f", grid level {level}"
        busy = " Other work stretched wall times." if settings["load"] > 2 else ""
        lines += ["", f"## {title}", "", f"{about}; load average {settings['load']}.{busy}", "", text, ""]
        lines += [f"![{title}](figures/{name})"]
    path.write_text("\n".join(lines) + "\n")
