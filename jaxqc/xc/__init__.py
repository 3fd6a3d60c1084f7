"""Exchange-correlation: grids, matrix-aligned cells, functionals."""

from jaxqc.xc._features_type import Features as Features
