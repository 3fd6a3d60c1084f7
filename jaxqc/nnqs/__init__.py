"""Neural selected configuration interaction: configurations, coupling, de-duplication, energies, selection."""

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
from jaxqc.nnqs._hamiltonian import Hamiltonian as Hamiltonian
from jaxqc.nnqs._perturbation import pt2 as pt2
from jaxqc.nnqs._selected import SelectedCI as SelectedCI
from jaxqc.nnqs._selected import extrapolate as extrapolate
from jaxqc.nnqs._selected import selected_ci as selected_ci
from jaxqc.nnqs._slater_condon import diagonal as diagonal
from jaxqc.nnqs._slater_condon import element as element
from jaxqc.nnqs._sparse import SparseHamiltonian as SparseHamiltonian
from jaxqc.nnqs._sparse import sparse_hamiltonian as sparse_hamiltonian
