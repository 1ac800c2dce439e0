"""The checker: whether an accumulated gradient is that of the full batch, and if not, why and what to change."""

from dagnn.accumulation.check.loop_check import check_loop
from dagnn.accumulation.check.model_check import check_equivalence
from dagnn.accumulation.check.report import Cause, Kind, Report, Row
from dagnn.accumulation.check.watching import Watched, watch

__all__ = ["Cause", "Kind", "Report", "Row", "Watched", "check_equivalence", "check_loop", "watch"]
