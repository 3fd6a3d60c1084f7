"""Generator of electron-repulsion kernels from recursive computation graphs.

The Head-Gordon-Pople recurrence (https://doi.org/10.1063/1.455553) of a class (la lb|lc ld) is built
as an explicit graph, shaped, scheduled, fused with the Cartesian-to-spherical transformation, packed and
written out as straight-line C++ over abstract scalars. Everything here is plain Python: it runs at build time
with the bare interpreter, ``python -m rcg emit --out DIR``.
"""
