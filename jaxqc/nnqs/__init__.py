"""Neural selected configuration interaction: configurations, coupling, de-duplication, energies, selection."""

from typing import TYPE_CHECKING

from jaxqc.nnqs._bits import Configurations as Configurations
from jaxqc.nnqs._bits import all_configurations as all_configurations
from jaxqc.nnqs._bits import aufbau as aufbau
from jaxqc.nnqs._bits import pack as pack
from jaxqc.nnqs._bits import unpack as unpack
from jaxqc.nnqs._coupling import Coupled as Coupled
from jaxqc.nnqs._coupling import couple as couple
from jaxqc.nnqs._davidson import Eigenstates as Eigenstates
from jaxqc.nnqs._davidson import lowest as lowest
from jaxqc.nnqs._deduplicate import Unique as Unique
from jaxqc.nnqs._deduplicate import deduplicate as deduplicate
from jaxqc.nnqs._density_matrices import density_matrices as density_matrices
from jaxqc.nnqs._energy import Estimate as Estimate
from jaxqc.nnqs._energy import Links as Links
from jaxqc.nnqs._energy import distillation as distillation
from jaxqc.nnqs._energy import energy as energy
from jaxqc.nnqs._energy import estimate as estimate
from jaxqc.nnqs._energy import infidelity as infidelity
from jaxqc.nnqs._energy import local_energies as local_energies
from jaxqc.nnqs._energy import rayleigh_quotient as rayleigh_quotient
from jaxqc.nnqs._extrapolate import State as State
from jaxqc.nnqs._extrapolate import extrapolate as extrapolate
from jaxqc.nnqs._hamiltonian import Hamiltonian as Hamiltonian
from jaxqc.nnqs._mesh import make_mesh as make_mesh
from jaxqc.nnqs._perturbation import pt2 as pt2
from jaxqc.nnqs._plot import plot as plot
from jaxqc.nnqs._properties import ao_density as ao_density
from jaxqc.nnqs._properties import dipole_moment as dipole_moment
from jaxqc.nnqs._selected import SelectedCI as SelectedCI
from jaxqc.nnqs._selected import natural_orbitals as natural_orbitals
from jaxqc.nnqs._selected import selected_ci as selected_ci
from jaxqc.nnqs._slater_condon import diagonal as diagonal
from jaxqc.nnqs._slater_condon import element as element
from jaxqc.nnqs._solve import Solution as Solution
from jaxqc.nnqs._solve import solve as solve
from jaxqc.nnqs._solve_expand import connected_links as connected_links
from jaxqc.nnqs._sparse import SparseHamiltonian as SparseHamiltonian
from jaxqc.nnqs._sparse import sparse_hamiltonian as sparse_hamiltonian
from jaxqc.nnqs._train import Sector as Sector
from jaxqc.nnqs._train import TrainState as TrainState
from jaxqc.nnqs._train import evaluate as evaluate
from jaxqc.nnqs._train import make_steps as make_steps
from jaxqc.nnqs._train import value_and_grad as value_and_grad
from jaxqc.nnqs._train_sr import Spring as Spring

if TYPE_CHECKING:
    from jaxqc.nnqs._ansatz import Transformer as Transformer


def __getattr__(name):
    if name == "Transformer":  # the only one that needs Flax
        from jaxqc.nnqs._ansatz import Transformer

        return Transformer
    raise AttributeError(f"module 'jaxqc.nnqs' has no attribute {name!r}")
