r"""The partition of space among the atoms in plain JAX: the definition, and the fallback of the compiled one.

The weight of a point $r$ that belongs to atom $a$ is multiplied with

$$\frac{P_a}{\sum_i P_i}, \quad P_i = \prod_{j \ne i} s(1 - \nu_{ij}), \quad \nu = \mu + a_{ij} (1 - \mu^2), \quad
\mu_{ij} = \frac{|r - R_i| - |r - R_j|}{|R_i - R_j|}$$

with $a_{ij} = (u_j / u_i - u_i / u_j) / 4$ from the radii u, between -1/2 and 1/2. The step s(t) rises from s(0) = 0
to s(2) = 1:

- Becke, doi:10.1063/1.454033: s = T(T(T(t))) / 2 with T(t) = t^2 (3 - t) / 2;
- Stratmann, Scuseria, Frisch, doi:10.1016/0009-2614(96)00600-8: 35/32 times the integral of (1 - x^2)^3 up to
  x = -nu / 0.64, and exactly 0 or 1 where |nu| >= 0.64.

Both are written in t = 1 - nu, in which a step near 0 keeps its relative precision.
"""

import jax
import jax.numpy as jnp

PARTITIONS = ("becke", "ssf")
SSF_CUTOFF = 0.64
_FLOOR = 1e-200  # of a step, so that its logarithm stays finite
CHUNK = 1 << 20  # points times pairs of atoms at a time


def becke_step(t):
    """s(t) of Becke for t from 0 to 2."""
    for _ in range(3):
        t = t * t * (1.5 - 0.5 * t)
    return 0.5 * t


def ssf_step(t):
    """s(t) of Stratmann, Scuseria and Frisch."""
    t = 1 + (t - 1) / SSF_CUTOFF
    near = jnp.where(t > 1, 2 - t, t)
    near = jnp.where(near > 0, near, 0.0)  # no clip: at t = 1 it would halve the derivative
    below = 35 / 32 * near**4 * (2 + near * (-2.4 + near * (1 - near / 7)))
    return jnp.where(t > 1, 1 - below, below)


def _norm(x):
    """Lengths of vectors, with derivative 0 at 0."""
    square = jnp.sum(x * x, axis=-1)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def reference_fractions(coords, points, owner, radii, *, partition, chunk=CHUNK):
    """Fractions of the weights, in time and memory that grow with the square of the number of atoms.

    Args:
        coords: (natm, 3) nuclei, Bohr.
        points: (n, 3) Bohr.
        owner: (n,) int32, the atom of each point.
        radii: (natm,) positive, see `GridTemplate.size_radii`.
        partition: `"becke"` or `"ssf"`.
        chunk: points times pairs of atoms that are held in memory.

    Returns:
        (n,) from 0 to 1.
    """
    natm, n = len(coords), len(points)
    separation = _norm(coords[:, None] - coords[None])
    apart = separation > 0  # also leaves out an atom with itself; two centres at one place share space equally
    inverse = jnp.where(apart, 1 / jnp.where(apart, separation, 1.0), 0.0)
    ratio = radii[:, None] / radii[None]
    shift = jnp.clip(0.25 * (ratio.T - ratio), -0.5, 0.5)
    others = ~jnp.eye(natm, dtype=bool)[None]
    step = becke_step if partition == "becke" else ssf_step

    def one(block):
        at, atom = block
        r = _norm(at[:, None] - coords[None])
        mu = (r[:, :, None] - r[:, None]) * inverse[None]
        s = step((1 - mu) * (1 - shift[None] * (1 + mu)))
        live = (s > _FLOOR) & others
        dead = (s <= _FLOOR) & others
        log_p = jnp.sum(jnp.where(live, jnp.log(jnp.where(live, s, 1.0)), 0.0), axis=-1)
        log_p = jnp.where(dead.any(axis=-1), -jnp.inf, log_p)
        log_p = log_p - jax.lax.stop_gradient(log_p.max(axis=-1, keepdims=True))
        finite = log_p > -600.0
        p = jnp.where(finite, jnp.exp(jnp.where(finite, log_p, 0.0)), 0.0)
        return jnp.take_along_axis(p, atom[:, None], axis=-1)[:, 0] / p.sum(axis=-1)

    if n == 0:
        return jnp.zeros(0, jnp.float64)
    size = max(1, min(n, chunk // max(1, natm * natm)))
    count = -(-n // size)
    pad = count * size - n
    blocks = (
        jnp.pad(points, ((0, pad), (0, 0)), mode="edge").reshape(count, size, 3),
        jnp.pad(owner, (0, pad), mode="edge").reshape(count, size),
    )
    return jax.lax.map(jax.checkpoint(one), blocks).reshape(-1)[:n]
