"""Tables, plots and a page from run directories. Needs neither torch nor lm-eval: files in, files out."""

from evaluation.report.formats import format_table
from evaluation.report.runs import read_runs
from evaluation.report.tables import MAIN_COLUMNS, main_rows
from evaluation.report.writer import ReportPaths, write_report

__all__ = ["MAIN_COLUMNS", "ReportPaths", "format_table", "main_rows", "read_runs", "write_report"]
