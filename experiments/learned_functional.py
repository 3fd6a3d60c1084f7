"""Trains a small neural exchange-correlation functional through the SCF: `python experiments/learned_functional.py`.

The functional multiplies PBE by what a network sees at each point,

    f = sum_s f_x^PBE[n_s] (1 + u_s X(u_s)) + f_c^PBE[n] (1 + u C(u, r_s, zeta^2)),    u = s^2 / (1 + s^2),

s the reduced density gradient. Exchange obeys spin scaling and uniform scaling, the uniform gas stays exact, and the
networks start at zero, which is PBE. Their parameters follow the errors of reaction energies,

    loss = mean_r (Delta E_r - Delta E_r^ref)^2,    Delta E_r = sum_m nu_rm E_m[f],

each E_m the converged energy of `jaxqc.energy(mol, xc=...)`, whose derivative with respect to the parameters is exact.
References are CCSD(T)/cc-pVTZ, so part of what is learned makes up for the basis set. One reaction with a molecule of
its own is held out: it is evaluated, never trained on.

Needs `pip install "jaxqc[train,plots]"`. Writes `experiments/learned_functional.md`, `experiments/figures/
learned_functional.png` and checkpoints, from which `--resume` goes on as if nothing had happened.
"""

import argparse
import math
import os
import time
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import jaxqc
from jaxqc.xc import Features, functional

HERE = Path(__file__).resolve().parent
CHECKPOINTS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxqc" / "learned_functional"
KCAL = 627.5094740631  # kcal/mol in a Hartree

# Geometry in Angstrom, spin (unpaired electrons), total energy in Hartree: frozen-core CCSD(T)/cc-pVTZ (Hartree-Fock
# for the atom) at this geometry, by PySCF 2.14.
SYSTEMS = {
    "H": ("H 0 0 0", 1, -0.4998098),
    "H2": ("H 0 0 0; H 0 0 0.7414", 0, -1.1723357),
    "CO": ("C 0 0 0; O 0 0 1.1282", 0, -113.1554553),
    "N2": ("N 0 0 0; N 0 0 1.0977", 0, -109.3738399),
    "H2O": ("O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692", 0, -76.3321942),
    "CH4": (
        "C 0 0 0; H 0.6276 0.6276 0.6276; H -0.6276 -0.6276 0.6276; H -0.6276 0.6276 -0.6276; H 0.6276 -0.6276 -0.6276",
        0,
        -40.4380896,
    ),
    "NH3": (
        "N 0 0 0.1128; H 0 0.9377 -0.2632; H 0.8121 -0.4689 -0.2632; H -0.8121 -0.4689 -0.2632",
        0,
        -56.4730918,
    ),
    "HCN": ("H 0 0 -1.0655; C 0 0 0; N 0 0 1.1532", 0, -93.2751159),
}
# What is made minus what is used up.
TRAINING = {
    "H2 -> 2 H": {"H": 2, "H2": -1},
    "CO + 3 H2 -> CH4 + H2O": {"CH4": 1, "H2O": 1, "CO": -1, "H2": -3},
    "N2 + 3 H2 -> 2 NH3": {"NH3": 2, "N2": -1, "H2": -3},
}
HELD_OUT = {"HCN + 3 H2 -> CH4 + NH3": {"CH4": 1, "NH3": 1, "HCN": -1, "H2": -3}}


# The functional


class Enhancement(nn.Module):
    """1 + u N(inputs): a small network, 1 at first, and always 1 in the uniform gas, where u = 0."""

    width: int

    @nn.compact
    def __call__(self, u, inputs):
        x = jnp.stack(inputs, axis=-1)
        for _ in range(2):
            x = nn.tanh(nn.Dense(self.width, param_dtype=jnp.float64)(x))
        x = nn.Dense(1, param_dtype=jnp.float64, kernel_init=nn.initializers.zeros)(x)
        return 1.0 + u * x[..., 0]


def bounded_gradient(rho, sigma):
    """u = s^2 / (1 + s^2) of densities of one spin, in [0, 1]; 1 where there is no density."""
    there = rho > 1e-10
    rho = jnp.where(there, rho, 1.0)
    s2 = jnp.where(there, sigma, 1.0) / (4.0 * (6.0 * math.pi**2) ** (2 / 3) * rho ** (8 / 3))
    return jnp.where(there, s2 / (1.0 + s2), 1.0)


class LearnedFunctional(nn.Module):
    """Energy per volume (n,) of `Features` at n points, kind "gga"."""

    width: int = 12

    @nn.compact
    def __call__(self, features):
        sigma = features.sigma
        rho, grad = features.rho, features.grad
        exchange_network = Enhancement(self.width, name="exchange")
        exchange = jnp.zeros_like(rho[0])
        for spin, own in ((0, sigma[0]), (1, sigma[2])):
            alone = Features.of(
                jnp.stack([rho[spin], jnp.zeros_like(rho[spin])]), jnp.stack([grad[spin], jnp.zeros_like(grad[spin])])
            )
            u = bounded_gradient(rho[spin], own)
            exchange = exchange + functional("gga_x_pbe").energy_density(alone) * exchange_network(u, [u, u * u])
        total = rho[0] + rho[1]
        u = bounded_gradient(0.5 * total, 0.25 * (sigma[0] + 2.0 * sigma[1] + sigma[2]))
        there = total > 1e-10
        safe = jnp.where(there, total, 1.0)
        radius = jnp.where(there, jnp.log1p(jnp.cbrt(3.0 / (4.0 * math.pi * safe))), 0.0)
        polarisation = jnp.where(there, ((rho[0] - rho[1]) / safe) ** 2, 0.0)
        correlation_network = Enhancement(self.width, name="correlation")
        correlation = functional("gga_c_pbe").energy_density(features)
        return exchange + correlation * correlation_network(u, [u, radius, polarisation])


def initial_parameters(seed=0, width=12):
    """Parameters of the functional, as a dictionary; with these it is PBE."""
    example = Features.of(jnp.ones((2, 1)), jnp.ones((2, 3, 1)))
    return LearnedFunctional(width).init(jax.random.key(seed), example)["params"]


def with_parameters(params):
    """The functional with its parameters, ready for `jaxqc.energy(mol, xc=...)`."""
    width = params["exchange"]["Dense_0"]["bias"].shape[0]
    return functional(lambda features: LearnedFunctional(width).apply({"params": params}, features), kind="gga")


# Energies and the loss


def needed(reactions):
    """The molecules that take part, in the order of SYSTEMS."""
    return [name for name in SYSTEMS if any(name in terms for terms in reactions.values())]


def energy_functions(names, basis, grid, derivative):
    """For each molecule the compiled energy as a function of the parameters, with its derivative if wanted."""

    def of(name):
        geometry, spin, _ = SYSTEMS[name]
        mol = jaxqc.Molecule(geometry, basis=basis, spin=spin)

        def energy(params):
            return jaxqc.energy(mol, xc=with_parameters(params), grid=grid)

        return jax.jit(jax.value_and_grad(energy) if derivative else energy)

    return {name: of(name) for name in names}


def errors(energies, reactions):
    """Errors of reaction energies, kcal/mol."""
    return {
        reaction: KCAL * sum(nu * (float(energies[m]) - SYSTEMS[m][2]) for m, nu in terms.items())
        for reaction, terms in reactions.items()
    }


def loss_and_gradient(functions, params, reactions):
    """Mean squared error of the reactions in (kcal/mol)^2, its derivative, and the errors."""
    both = {name: function(params) for name, function in functions.items()}
    failed = [name for name, (energy, _) in both.items() if not math.isfinite(energy)]
    if failed:
        raise RuntimeError(f"The SCF of {', '.join(failed)} did not converge. Try a smaller --rate.")
    found = errors({name: energy for name, (energy, _) in both.items()}, reactions)
    # d loss / d E_m, then the chain rule.
    weight = dict.fromkeys(both, 0.0)
    for reaction, terms in reactions.items():
        for m, nu in terms.items():
            weight[m] += 2.0 * KCAL * nu * found[reaction] / len(reactions)
    parts = [jax.tree.map(lambda g, w=weight[name]: w * g, gradient) for name, (_, gradient) in both.items()]
    gradient = jax.tree.map(lambda *g: sum(g[1:], g[0]), *parts)
    return sum(e * e for e in found.values()) / len(reactions), gradient, found


# Training


class Trainer:
    """Functions, optimiser, checkpoints; the state is a dictionary of params, opt_state and step."""

    def __init__(self, training, held_out, *, basis, grid, rate, steps, checkpoints=None):
        self.training, self.held_out = training, held_out
        mine = needed(training)
        self.functions = energy_functions(mine, basis, grid, True)
        others = [name for name in needed(held_out) if name not in mine]
        self.others = energy_functions(others, basis, grid, False)
        # Adam with a cosine decay, and no step on a surface that is far steeper than usual.
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(1e3), optax.adam(optax.cosine_decay_schedule(rate, steps, alpha=0.1))
        )
        self.manager = None
        if checkpoints is not None:
            options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
            self.manager = ocp.CheckpointManager(Path(checkpoints).resolve(), options=options)

    def start(self, params):
        """The state before the first step."""
        return {"params": params, "opt_state": self.optimizer.init(params), "step": jnp.asarray(0)}

    def step(self, state):
        """One step: the next state, and what the old parameters gave."""
        loss, gradient, found = loss_and_gradient(self.functions, state["params"], self.training)
        record = {"step": int(state["step"]), "loss": loss, "training": found, "held out": self.evaluate(state)}
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes types
            updates, opt_state = self.optimizer.update(gradient, state["opt_state"], state["params"])
            params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state, "step": state["step"] + 1}, record

    def evaluate(self, state):
        """Errors of the reactions that are held out."""
        energies = {name: function(state["params"]) for name, function in self.others.items()}
        for name in needed(self.held_out):
            if name not in energies:
                energies[name] = self.functions[name](state["params"])[0]
        return errors(energies, self.held_out)

    def save(self, state, history):
        """Writes a checkpoint of the state and of the history."""
        if self.manager is not None:
            items = ocp.args.Composite(state=ocp.args.StandardSave(state), history=ocp.args.JsonSave(history))
            self.manager.save(int(state["step"]), args=items, force=True)
            self.manager.wait_until_finished()

    def restore(self, like):
        """The state and history of the newest checkpoint, or None; `like` is a state of the same shapes."""
        if self.manager is None or self.manager.latest_step() is None:
            return None
        items = ocp.args.Composite(state=ocp.args.StandardRestore(like), history=ocp.args.JsonRestore())
        found = self.manager.restore(self.manager.latest_step(), args=items)
        return found["state"], found["history"]

    def close(self):
        if self.manager is not None:
            self.manager.close()


def rms(found):
    return math.sqrt(sum(e * e for e in found.values()) / len(found))


def train(trainer, state, history, steps, every, console):
    """Steps to the given number, with a display of progress and a checkpoint every so many steps."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, TextColumn("{task.fields[status]}"), console=console) as progress:
        task = progress.add_task("training", total=steps, completed=int(state["step"]), status="compiling")
        while int(state["step"]) < steps:
            state, record = trainer.step(state)
            history = [*history, record]
            status = f"error {rms(record['training']):.2f}, held out {rms(record['held out']):.2f} kcal/mol"
            progress.update(task, completed=int(state["step"]), status=status)
            if int(state["step"]) % every == 0 or int(state["step"]) == steps:
                trainer.save(state, history)
    return state, history


# Results


def last_errors(trainer, state):
    _, _, found = loss_and_gradient(trainer.functions, state["params"], trainer.training)
    return found, trainer.evaluate(state)


def rows(trainer, history, final):
    """Reaction, role, reference, error of PBE, error of the trained functional; energies in kcal/mol."""
    first = {**history[0]["training"], **history[0]["held out"]}
    last = {**final[0], **final[1]}
    for role, reactions in (("training", trainer.training), ("held out", trainer.held_out)):
        for reaction, terms in reactions.items():
            reference = KCAL * sum(nu * SYSTEMS[m][2] for m, nu in terms.items())
            yield reaction, role, f"{reference:.2f}", f"{first[reaction]:+.2f}", f"{last[reaction]:+.2f}"


HEAD = ("reaction", "", "CCSD(T)", "error of PBE", "error, trained")


def plot(history, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = [record["step"] for record in history]
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    axes[0].semilogy(steps, [record["loss"] for record in history])
    axes[0].set(xlabel="step", ylabel="loss, (kcal/mol)$^2$", title="training")
    for reaction in history[0]["held out"]:
        axes[1].plot(steps, [abs(record["held out"][reaction]) for record in history], label=reaction)
    for reaction in history[0]["training"]:
        values = [abs(record["training"][reaction]) for record in history]
        axes[1].plot(steps, values, linewidth=0.8, linestyle=":", label=reaction)
    axes[1].set(xlabel="step", ylabel="error, kcal/mol", title="held out (dotted: training)", yscale="log")
    axes[1].legend(fontsize=7)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def report(options, lines, history, times, nparams):
    table = [HEAD, ["---"] * len(HEAD), *lines]
    return "\n".join(
        [
            "# A functional trained through the SCF",
            "",
            "Written by `python experiments/learned_functional.py`; its docstring says what is trained.",
            f"{len(history)} steps of Adam on {nparams} parameters, basis {options.basis}, grid level {options.grid}, "
            f"{times[0]:.0f} s ({times[1]:.0f} s of CPU time), compilation included. Energies in kcal/mol; PBE is "
            "where training starts.",
            "",
            *("| " + " | ".join(row) + " |" for row in table),
            "",
            "![loss and error against step](figures/learned_functional.png)",
            "",
        ]
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=4e-3, help="learning rate at the start")
    parser.add_argument("--basis", default="def2-svp")
    parser.add_argument("--grid", type=int, default=1, help="level of the grid")
    parser.add_argument("--width", type=int, default=12, help="of the networks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--checkpoints",
        type=Path,
        default=CHECKPOINTS,
        help=f"folder, by default {CHECKPOINTS}; emptied without --resume",
    )
    parser.add_argument("--every", type=int, default=10, help="steps from checkpoint to checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--output", type=Path, default=HERE, help="folder of the table and the figure")
    options = parser.parse_args(arguments)
    console = Console()
    settings = {"basis": options.basis, "grid": options.grid, "rate": options.rate, "steps": options.steps}
    trainer = Trainer(TRAINING, HELD_OUT, **settings, checkpoints=options.checkpoints)
    state, history = trainer.start(initial_parameters(options.seed, options.width)), []
    if options.resume:
        found = trainer.restore(state)
        if found is None:
            parser.error(f"--resume was given, but there is no checkpoint in {options.checkpoints}.")
        state, history = found
    elif trainer.manager is not None:
        for step in trainer.manager.all_steps():
            trainer.manager.delete(step)
    began = time.perf_counter(), time.process_time()
    state, history = train(trainer, state, history, options.steps, options.every, console)
    final = last_errors(trainer, state)
    times = time.perf_counter() - began[0], time.process_time() - began[1]
    trainer.close()
    lines = list(rows(trainer, history, final))
    table = Table(title="Reaction energies, kcal/mol")
    for title in HEAD:
        table.add_column(title)
    for line in lines:
        table.add_row(*line)
    console.print(table)
    nparams = sum(int(np.size(x)) for x in jax.tree.leaves(state["params"]))
    options.output.mkdir(exist_ok=True, parents=True)
    (options.output / "learned_functional.md").write_text(report(options, lines, history, times, nparams))
    plot(history, options.output / "figures" / "learned_functional.png")
    console.print(f"written: {options.output / 'learned_functional.md'}, and figures/learned_functional.png beside it")
    return history


if __name__ == "__main__":
    main()
