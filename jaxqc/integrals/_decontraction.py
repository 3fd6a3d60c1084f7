r"""Shells of the two-electron kernels: heavily general contractions are taken apart into their primitives; others are
combined so that they have fewer.

The kernels treat each contracted function as a shell of its own, so $k$ functions over the same $n$ primitives cost
$(k n)^4$ primitive quartets. Where that repeats each primitive many times (ANO bases), J and K are built over the
primitives $\phi_p$ instead: with $\chi_i = \sum_p C_{pi} \phi_p$,

$J = C^T J_\phi[C D C^T] C$, and likewise K.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.integrals._elimination import eliminated
from jaxqc.integrals._shells import ShellList, cartesian_size, primitive_norms
from jaxqc.molecule import Molecule, Shell

# Taken apart where the functions of an atom and angular momentum use each primitive at least this often, on average.
_REPEATS = 4


@functools.cache
def _plan(shells: tuple[Shell, ...], cart: bool):
    """Static layout of the kernels' shells and of C; None when nothing is to be taken apart.

    The layout has (shell, -1) for a shell that is kept and (a shell of the same kind, exponent) for a primitive. The
    entries of C are rows, columns, and for each the primitive of the contracted list that gives its value and the place
    of the primitive among those taken apart; both -1 for the ones of kept functions.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for k, shell in enumerate(shells):
        groups.setdefault((shell.atom, shell.l), []).append(k)

    def primitives(k):
        return range(shells[k].exponent_start, shells[k].exponent_start + shells[k].nprim)

    apart = {}
    for key, members in groups.items():
        distinct = sorted({p for k in members for p in primitives(k)})
        if sum(shells[k].nprim for k in members) >= _REPEATS * len(distinct):
            apart[key] = distinct
    if not apart:
        return None
    first = np.concatenate([[0], np.cumsum([s.nprim for s in shells])])
    sizes = [cartesian_size(s.l) if cart else 2 * s.l + 1 for s in shells]
    column = np.concatenate([[0], np.cumsum(sizes)])
    layout: list[tuple[int, int]] = []  # (shell, -1) kept, or (a shell of the same kind, exponent index)
    rows, columns, sources, places = [], [], [], []
    row = 0
    for key, members in groups.items():
        if key not in apart:
            for k in members:
                layout.append((k, -1))
                for m in range(sizes[k]):
                    rows.append(row + m)
                    columns.append(column[k] + m)
                    sources.append(-1)
                    places.append(-1)
                row += sizes[k]
            continue
        for exponent in apart[key]:
            place = sum(1 for _, e in layout if e >= 0)
            layout.append((members[0], exponent))
            for k in members:
                if exponent in primitives(k):
                    for m in range(sizes[k]):
                        rows.append(row + m)
                        columns.append(column[k] + m)
                        sources.append(int(first[k]) + exponent - shells[k].exponent_start)
                        places.append(place)
            row += sizes[members[0]]
    return layout, np.array(rows), np.array(columns), np.array(sources), np.array(places), row


@jax.jit  # within an iteration traced once, and outside of jit one program
def two_electron_shells(mol: Molecule) -> tuple[ShellList, jax.Array | None]:
    """The shells that J and K are built over, and the contraction C to the molecule's functions.

    **Returns:** the list, and C of shape `(number of its functions, nao)`, or None where they are the molecule's own.
    """
    contracted = ShellList.from_molecule(mol)
    plan = _plan(mol.shells, mol.cart)
    if plan is None:
        both = contracted.exponents, contracted.coefficients
        coefficients, matrix = eliminated(mol.shells, mol.cart, *both, mol.nao)
        return dataclasses.replace(contracted, coefficients=coefficients), matrix
    layout, rows, columns, sources, places, size = plan
    first = contracted.prim_offsets
    shell_of = np.array([k for k, _ in layout])
    exponent_of = [e for _, e in layout if e >= 0]
    ls_apart = np.array([mol.shells[k].l for k, e in layout if e >= 0])
    apart_exponents = mol.exponents[np.array(exponent_of)]
    norms = primitive_norms(ls_apart, apart_exponents)
    # Each primitive of the new list: one of the contracted list, or of those taken apart (counted on from there).
    source, nprims, place = [], [], int(first[-1])
    for k, e in layout:
        source.append(np.arange(first[k], first[k + 1]) if e < 0 else np.array([place]))
        nprims.append(len(source[-1]))
        place += e >= 0
    take = np.concatenate(source)
    shells = ShellList(
        tuple(mol.shells[k].l for k in shell_of),
        tuple(nprims),
        contracted.centers[shell_of],
        jnp.concatenate([contracted.exponents, apart_exponents])[take],
        jnp.concatenate([contracted.coefficients, norms])[take],
    )
    values = jnp.where(sources < 0, 1.0, contracted.coefficients[sources] / norms[places])
    return shells, jnp.zeros((size, mol.nao)).at[rows, columns].set(values)
