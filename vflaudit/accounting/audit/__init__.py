"""Lower bounds on epsilon from an attack's scores: scores in, bound out.

`clopper_pearson` and `one_run` hold for every mechanism. `gdp`, `gaussian_fit` and `one_run(form="gdp")` assume that
the mechanism or the scores are Gaussian, and say so in `Bound.kind`. `credible` is a Bayesian statement.
"""

from vflaudit.accounting.audit.bounds import Bonferroni, Bound, Correction, Fixed, Split
from vflaudit.accounting.audit.one_run import one_run
from vflaudit.accounting.audit.two_rates import clopper_pearson, credible, gaussian_fit, gdp

__all__ = [
    "Bonferroni",
    "Bound",
    "Correction",
    "Fixed",
    "Split",
    "clopper_pearson",
    "credible",
    "gaussian_fit",
    "gdp",
    "one_run",
]
