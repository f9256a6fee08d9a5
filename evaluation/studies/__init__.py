"""The paper's premises as measurements on any model: does entropy predict drift, does volatility persist, does the
overhead stay flat; what a row costs on this device; and which (tau, k) to use.

Each study is a frozen dataclass of its settings with `measure` (a model's figures as data frames) and `report` (tables,
plots and conclusions from the frames of all models). `evaluation.report.studies` reads back what they write.
"""
