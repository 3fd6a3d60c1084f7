"""Density matrices of vectors on a set of configurations."""

from functools import partial

import jax
import jax.numpy as jnp

from jaxqc._platform import on_gpu
from jaxqc.integrals._library import handler
from jaxqc.nnqs._coupling import check_set
from jaxqc.nnqs._density_pairs import density_from_pairs
from jaxqc.nnqs._tables import tables_of


def density_matrices(ham, configurations, vector, ket=None) -> tuple[jax.Array, jax.Array]:
    r"""One- and two-particle density matrices, summed over spins, in PySCF's convention.

    dm1_pq = <q' p> and dm2_pqrs = <p' r' s q>, so that
    E = E_0 + sum_pq h_pq dm1_pq + 1/2 sum_pqrs (pq|rs) dm2_pqrs.

    Args:
        ham: `Hamiltonian`, of which the numbers of orbitals and electrons matter.
        configurations: `Configurations`, or (n, words) uint64 keys.
        vector: (n,) or (count,) coefficients.
        ket: another vector, for transition density matrices <vector| |ket>; None for `vector` itself.

    Returns:
        (norb, norb) and (norb, norb, norb, norb).

    Raises:
        TypeError, ValueError: an argument is not what it must be.
    """
    name = "jaxqc.nnqs.density_matrices"
    keys, count = check_set(ham, configurations, name)
    vectors = []
    for label, given in (("vector", vector), ("ket", vector if ket is None else ket)):
        given = jnp.asarray(given, jnp.float64)
        if given.ndim != 1 or given.shape[0] not in (keys.shape[0], int(count)):
            raise ValueError(
                f"Argument {label} of {name} has the shape {given.shape}; it must have one coefficient for each of the "
                f"{int(count)} configurations."
            )
        vectors.append(jnp.pad(given, (0, keys.shape[0] - given.shape[0])))
    operands = keys, count, *vectors
    if on_gpu():
        return density_from_pairs(ham, *operands)
    return _density(tables_of(ham, complete=True), *operands, norb=ham.norb)


@partial(jax.jit, static_argnames="norb")
def _density(tables, keys, count, bra, ket, *, norb):
    results = (
        jax.ShapeDtypeStruct((norb, norb), jnp.float64),
        jax.ShapeDtypeStruct((norb,) * 4, jnp.float64),
    )
    return tuple(jax.ffi.ffi_call(handler("jaxqc_ci_density"), results)(keys, count.reshape(1), bra, ket, *tables))
