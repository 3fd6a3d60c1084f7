"""Neural selected configuration interaction: configurations, coupling, de-duplication, energies, selection."""

from jaxqc.nnqs._bits import Configurations as Configurations
from jaxqc.nnqs._bits import all_configurations as all_configurations
from jaxqc.nnqs._bits import aufbau as aufbau
from jaxqc.nnqs._bits import pack as pack
from jaxqc.nnqs._bits import unpack as unpack
from jaxqc.nnqs._coupling import Coupled as Coupled
from jaxqc.nnqs._coupling import couple as couple
from jaxqc.nnqs._deduplicate import Unique as Unique
from jaxqc.nnqs._deduplicate import deduplicate as deduplicate
from jaxqc.nnqs._hamiltonian import Hamiltonian as Hamiltonian
from jaxqc.nnqs._slater_condon import diagonal as diagonal
from jaxqc.nnqs._slater_condon import element as element
