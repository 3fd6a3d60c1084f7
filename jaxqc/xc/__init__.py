r"""Exchange and correlation on matrix-aligned cells: grids, functionals, and one linear map with its transpose.

The density matrix is mapped to features on the grid, $(\rho, \nabla\rho, \tau) = R D$, by compiled kernels that read
rows of grid points with compacted lists of orbitals; the transpose of $R$ carries derivatives of a pointwise function
back. Every derivative of $E_{xc} = \sum_g w_g f(R_g D)$ is made of these two.
"""

from jaxqc.xc._cells import Layout as Layout
from jaxqc.xc._cells import build_layout as build_layout
from jaxqc.xc._density import density_features as density_features
from jaxqc.xc._features_type import Features as Features
from jaxqc.xc._grid import Grid as Grid
from jaxqc.xc._potential import potential as potential
from jaxqc.xc._potential import xc_energy as xc_energy
from jaxqc.xc._sharding import ShardedLayout as ShardedLayout
from jaxqc.xc._sharding import shard_layout as shard_layout
from jaxqc.xc._sharding import sharded_potential as sharded_potential
from jaxqc.xc._sharding import sharded_xc_energy as sharded_xc_energy
from jaxqc.xc.functionals import Functional as Functional
from jaxqc.xc.functionals import functional as functional
