"""Tables of the Boys function and of Rys quadratures, from the compiled library, for kernels on other devices."""

import ctypes
import functools

import numpy as np

from jaxqc.integrals._library import load

BOYS_ROWS = 385
"""Grid points T = i / 8 of the Boys tables; from T = 48 on the integral to infinity serves."""
RYS_TERMS = 14
RYS_INTERVAL = 2.5

_DOUBLES = ctypes.POINTER(ctypes.c_double)


@functools.cache
def boys_rows(order: int) -> np.ndarray:
    """Taylor coefficients F_{order + k}(i / 8) / k!, k < 8, row after row; shape `(385 * 8,)`."""
    function = load().jaxqc_boys_rows
    function.restype = _DOUBLES
    return np.ctypeslib.as_array(function(ctypes.c_int(order)), (BOYS_ROWS * 8,)).copy()


@functools.cache
def exp_grid() -> np.ndarray:
    """exp(-i / 8); shape `(385,)`."""
    function = load().jaxqc_exp_grid
    function.restype = _DOUBLES
    return np.ctypeslib.as_array(function(), (BOYS_ROWS,)).copy()


@functools.cache
def boys_rows_single(order: int) -> np.ndarray:
    """The same in single precision, k < 5, followed by exp(-i / 8); rows of 8 numbers, shape `(385 * 8,)`."""
    rows = np.zeros((BOYS_ROWS, 8), np.float32)
    rows[:, :5] = boys_rows(order).reshape(BOYS_ROWS, 8)[:, :5]
    rows[:, 5] = exp_grid()
    return rows.reshape(-1)


@functools.cache
def rys_table(n: int) -> tuple[np.ndarray, float]:
    """Roots and weights of `n` points.

    **Returns:** polynomials of degree 13 in each interval of T, `[interval][2 n][14]` (roots, then weights), followed
    by the 2 n numbers of the Hermite limit, flat; and the T from which that limit holds.
    """
    asymptotic, polynomials, hermite = ctypes.c_double(), _DOUBLES(), _DOUBLES()
    failed = load().jaxqc_rys_table(
        ctypes.c_int(n), ctypes.byref(asymptotic), ctypes.byref(polynomials), ctypes.byref(hermite)
    )
    if failed:
        raise ValueError(f"A Rys quadrature of {n} points was asked for; there are tables for 1 to 16.")
    intervals = round(asymptotic.value / RYS_INTERVAL)
    rows = np.ctypeslib.as_array(polynomials, (intervals * 2 * n * RYS_TERMS,))
    return np.concatenate([rows, np.ctypeslib.as_array(hermite, (2 * n,))]), asymptotic.value
