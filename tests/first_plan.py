"""Whoever imports this has made a first plan, which imports every value of every axis: ranks are forked with them."""

from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan

make_plan(validate({"name": "first"}))
