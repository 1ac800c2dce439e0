"""The sweeps over DAGs that `dagnn.nn` runs on. `choose_path` chooses how they run."""

from dagnn.kernels.choose_path import (
    accumulate_network,
    explain_cell,
    explain_network,
    explain_wide,
    kernel_path,
    replace_gradients,
    run_conductance,
    run_network,
    run_sweeps,
    run_wide,
)
from dagnn.kernels.level_plans import LevelPlan, plan_levels
from dagnn.kernels.network.conductance import ConductancePlan, Conductances
from dagnn.kernels.network.conductance_products import ProductPlan, message_scales, plan_conductance
from dagnn.kernels.network.plan import NetworkPlan, plan_network
from dagnn.kernels.nodes import ACTIVATIONS, AGGREGATIONS, NEAT_ACTIVATIONS
from dagnn.kernels.reference import Aggregate, Cell
from dagnn.kernels.sweep import Columns, Named, Operands, Weights
from dagnn.kernels.sweep.autograd_function import ProjectedCell, Projects
from dagnn.kernels.sweep.cell_plan import CellPlan, plan_cell
from dagnn.kernels.wide.plan import WideParameters, WidePlan, WideResult, WideState

__all__ = [
    "ACTIVATIONS",
    "AGGREGATIONS",
    "NEAT_ACTIVATIONS",
    "Aggregate",
    "Cell",
    "CellPlan",
    "Columns",
    "ConductancePlan",
    "Conductances",
    "LevelPlan",
    "Named",
    "NetworkPlan",
    "Operands",
    "ProductPlan",
    "ProjectedCell",
    "Projects",
    "Weights",
    "WideParameters",
    "WidePlan",
    "WideResult",
    "WideState",
    "accumulate_network",
    "explain_cell",
    "explain_network",
    "explain_wide",
    "kernel_path",
    "message_scales",
    "plan_cell",
    "plan_conductance",
    "plan_levels",
    "plan_network",
    "replace_gradients",
    "run_conductance",
    "run_network",
    "run_sweeps",
    "run_wide",
]
