r"""Derivatives of contracted shells are shells again: the rules that close every integral under differentiation.

An integral is linear in each of its shells $\chi = x^a y^b z^c \sum_p c_p e^{-\alpha_p r^2}$, so its derivative with
respect to a parameter of a shell is the same integral over $\partial\chi$:

- centre: $\partial\chi/\partial A_x = \sum_p 2 \alpha_p c_p x^{a+1} \dots - a \sum_p c_p x^{a-1} \dots$: shells $l + 1$
  with coefficients $2 \alpha c$ and shells $l - 1$ with coefficients $c$;
- coefficient: $\partial\chi/\partial c_p$ is one primitive with coefficient 1;
- exponent: $\partial\chi/\partial\alpha_p = -r^2 c_p \dots$: one primitive of $l + 2$ with coefficient $-c_p$, three of
  whose components are added.

`shell_tangents` gives these shells with the linear maps between their functions and those of the original list:

    total = 0
    for tangent in shell_tangents(shells, dcenters, None, None):
        total += tangent.contract(integral(tangent.shells, ...), axis)

where `contract` goes from the functions of `tangent.shells` along `axis` to those of `shells`. The integral over
`tangent.shells` does not depend on the tangents, and `contract` is linear in them, so JAX can transpose it. An operand
that is itself indexed by the functions (a density) goes the other way: `tangent.expand(density, axis)`.
All functions are Cartesian.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.integrals._axis_map import AxisMap
from jaxqc.integrals._shells import (
    ShellList,
    cartesian_index,
    cartesian_offsets,
    cartesian_powers,
)


def concatenate(lists: Sequence[ShellList]) -> ShellList:
    """One list after the other."""
    return ShellList(
        tuple(l for shells in lists for l in shells.ls),
        tuple(n for shells in lists for n in shells.nprims),
        jnp.concatenate([shells.centers for shells in lists]),
        jnp.concatenate([shells.exponents for shells in lists]),
        jnp.concatenate([shells.coefficients for shells in lists]),
    )


def raised_shells(shells: ShellList) -> ShellList:
    """The shells l + 1 with coefficients 2 alpha c, one for each shell."""
    coefficients = 2.0 * shells.exponents * shells.coefficients
    return ShellList(tuple(l + 1 for l in shells.ls), shells.nprims, shells.centers, shells.exponents, coefficients)


def lowered_shells(shells: ShellList) -> ShellList:
    """The shells l - 1 with coefficients c, one for each shell but those with l = 0."""
    keep = np.flatnonzero(np.asarray(shells.ls) > 0)
    starts = shells.prim_offsets
    primitives = np.concatenate([np.arange(starts[k], starts[k + 1]) for k in keep] or [np.zeros(0, int)]).astype(int)
    return ShellList(
        tuple(shells.ls[k] - 1 for k in keep),
        tuple(shells.nprims[k] for k in keep),
        shells.centers[keep],
        shells.exponents[primitives],
        shells.coefficients[primitives],
    )


def center_shells(shells: ShellList) -> ShellList:
    """`raised_shells` followed by `lowered_shells`: what a derivative with respect to the centres needs."""
    if max(shells.ls) == 0:
        return raised_shells(shells)
    return concatenate([raised_shells(shells), lowered_shells(shells)])


@functools.cache
def center_map(ls: tuple[int, ...]) -> AxisMap:
    """From the functions of `center_shells` to the derivatives of those of `ls`, ordered as `(3, nao_cart)`."""
    nao = int(cartesian_offsets(ls)[-1])
    start = cartesian_offsets(ls)
    raised = cartesian_offsets(tuple(l + 1 for l in ls))
    lowered = cartesian_offsets(tuple(l - 1 for l in ls if l > 0)) + raised[-1]
    lowered_of = np.cumsum(np.asarray(ls) > 0) - 1
    out, source, weight = [], [], []
    for shell, l in enumerate(ls):
        for place, powers in enumerate(cartesian_powers(l)):
            for axis in range(3):
                for change, value in ((1, 1.0), (-1, -float(powers[axis]))):
                    if value == 0:
                        continue
                    changed = list(powers)
                    changed[axis] += change
                    first = raised[shell] if change > 0 else lowered[lowered_of[shell]]
                    out.append(axis * nao + start[shell] + place)
                    source.append(first + cartesian_index((changed[0], changed[1], changed[2])))
                    weight.append(value)
    return AxisMap.from_entries(np.array(out), np.array(source), np.array(weight), 3 * nao, int(lowered[-1]))


def primitive_shells(shells: ShellList, raise_by: int = 0) -> ShellList:
    """One shell of one primitive with coefficient 1 for each primitive, its angular momentum raised by `raise_by`."""
    shell_of = np.repeat(np.arange(shells.nshell), shells.nprims)
    ls = tuple(shells.ls[k] + raise_by for k in shell_of)
    ones = jnp.ones_like(shells.coefficients)
    return ShellList(ls, (1,) * len(ls), shells.centers[shell_of], shells.exponents, ones)


def exponent_shells(shells: ShellList) -> ShellList:
    """One shell l + 2 of one primitive with coefficient -c for each primitive."""
    return dataclasses.replace(primitive_shells(shells, 2), coefficients=-shells.coefficients)


@functools.cache
def squared_radius_map(ls: tuple[int, ...]) -> AxisMap:
    """From the functions of shells l + 2 to r² times those of the shells `ls`."""
    start, raised = cartesian_offsets(ls), cartesian_offsets(tuple(l + 2 for l in ls))
    out, source = [], []
    for shell, l in enumerate(ls):
        for place, (x, y, z) in enumerate(cartesian_powers(l)):
            out += [start[shell] + place] * 3
            for powers in ((x + 2, y, z), (x, y + 2, z), (x, y, z + 2)):
                source.append(raised[shell] + cartesian_index(powers))
    return AxisMap.from_entries(np.array(out), np.array(source), np.ones(len(out)), int(start[-1]), int(raised[-1]))


@functools.cache
def _primitive_layout(ls: tuple[int, ...], nprims: tuple[int, ...]) -> tuple[AxisMap, AxisMap]:
    """From a value per primitive to one per function of `primitive_shells`; from those to the contracted functions."""
    start = cartesian_offsets(ls)
    sizes = np.diff(start)
    shell_of = np.repeat(np.arange(len(ls)), nprims)
    primitive = np.repeat(np.arange(len(shell_of)), sizes[shell_of])
    function = np.concatenate([np.arange(start[k], start[k + 1]) for k in shell_of])
    total = len(function)
    spread = AxisMap.take(primitive, len(shell_of))
    return spread, AxisMap.from_entries(function, np.arange(total), np.ones(total), int(start[-1]), total)


@functools.cache
def _function_map(ls: tuple[int, ...]) -> AxisMap:
    """From one value for each shell to one for each function."""
    return AxisMap.take(np.repeat(np.arange(len(ls)), np.diff(cartesian_offsets(ls))), len(ls))


def _along(vector: jax.Array, ndim: int, axis: int) -> jax.Array:
    """A vector as an array of `ndim` axes that varies along `axis` only."""
    return vector.reshape((1,) * axis + (-1,) + (1,) * (ndim - axis - 1))


@dataclasses.dataclass(frozen=True)
class CenterTangent:
    """A change of the centres: `shells` is `center_shells` of the list, `tangent` has shape `(nshell, 3)`."""

    shells: ShellList
    original_ls: tuple[int, ...]
    tangent: jax.Array

    def _weights(self) -> jax.Array:
        return _function_map(self.original_ls)(self.tangent.T, 1)  # (3, nao_cart)

    def contract(self, array: jax.Array, axis: int) -> jax.Array:
        """From the functions of `shells` to those of the original list, along `axis`; linear in the tangent."""
        axis %= array.ndim
        mapped = center_map(self.original_ls)(array, axis)
        weights = self._weights()
        split = mapped.reshape(*array.shape[:axis], *weights.shape, *array.shape[axis + 1 :])
        letters = "abcde"[: array.ndim - 1]
        before, after = letters[:axis], letters[axis:]
        return jnp.einsum(f"xi,{before}xi{after}->{before}i{after}", weights, split)

    def expand(self, array: jax.Array, axis: int) -> jax.Array:
        """The transpose of `contract`: from the functions of the original list to those of `shells`, along `axis`."""
        axis %= array.ndim
        weights = self._weights()
        letters = "abcde"[: array.ndim - 1]
        before, after = letters[:axis], letters[axis:]
        product = jnp.einsum(f"xi,{before}i{after}->{before}xi{after}", weights, array)
        flat = product.reshape(*array.shape[:axis], -1, *array.shape[axis + 1 :])
        return center_map(self.original_ls).transpose(flat, axis)


@dataclasses.dataclass(frozen=True)
class PrimitiveTangent:
    """A change of the coefficients or exponents: one shell per primitive; `tangent` has shape `(nprim_total,)`.

    `to_primitives` maps the functions of `shells` to those of `primitive_shells`; None if they are the same.
    """

    shells: ShellList
    original_ls: tuple[int, ...]
    original_nprims: tuple[int, ...]
    to_primitives: AxisMap | None
    tangent: jax.Array

    def contract(self, array: jax.Array, axis: int) -> jax.Array:
        """From the functions of `shells` to those of the original list, along `axis`; linear in the tangent."""
        axis %= array.ndim
        spread, add = _primitive_layout(self.original_ls, self.original_nprims)
        if self.to_primitives is not None:
            array = self.to_primitives(array, axis)
        return add(array * _along(spread(self.tangent, 0), array.ndim, axis), axis)

    def expand(self, array: jax.Array, axis: int) -> jax.Array:
        """The transpose of `contract`: from the functions of the original list to those of `shells`, along `axis`."""
        axis %= array.ndim
        spread, add = _primitive_layout(self.original_ls, self.original_nprims)
        product = add.transpose(array, axis) * _along(spread(self.tangent, 0), array.ndim, axis)
        return product if self.to_primitives is None else self.to_primitives.transpose(product, axis)


def shell_tangents(
    shells: ShellList,
    centers: jax.Array | None,
    exponents: jax.Array | None,
    coefficients: jax.Array | None,
) -> list[CenterTangent | PrimitiveTangent]:
    """The derivative shells for given changes of the parameters of a list, with their maps.

    **Arguments:**

    - `shells`: the list that changes.
    - `centers`, `exponents`, `coefficients`: the changes, shaped as the fields of `shells`, or None for no change.

    **Returns:** one entry for each change that is not None.
    """
    tangents: list[CenterTangent | PrimitiveTangent] = []
    if centers is not None:
        tangents.append(CenterTangent(center_shells(shells), shells.ls, centers))
    if exponents is not None or coefficients is not None:
        primitive_ls = primitive_shells(shells).ls
        if exponents is not None:
            to_primitives = squared_radius_map(primitive_ls)
            tangents.append(
                PrimitiveTangent(exponent_shells(shells), shells.ls, shells.nprims, to_primitives, exponents)
            )
        if coefficients is not None:
            tangents.append(PrimitiveTangent(primitive_shells(shells), shells.ls, shells.nprims, None, coefficients))
    return tangents
