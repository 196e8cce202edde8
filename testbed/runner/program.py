"""Where runs that this process would make come from: what a command's arguments name, and which image, here and now."""

from pathlib import Path

from testbed.experiment.experiment import Experiment
from testbed.hosts.base import image_id
from testbed.plan.plan import Plan
from testbed.store.documents import Origin, flat, origin_here
from testbed.system.command_files import files_digest


def program_sha256(experiment: Experiment) -> str | None:
    """Digest of the files that a command's arguments name, seen from the working directory, in which it is run; None:
    the workload is ours."""
    command = experiment.workload.command
    return None if command is None else files_digest(command.argv, Path.cwd())


def origin_of_runs(experiment: Experiment) -> Origin:
    """Of runs of the experiment that this process would make, however they are planned."""
    return _origin(experiment, program_sha256(experiment))


def origin_of_plan(plan: Plan) -> Origin:
    """Of runs that this process would make of the plan."""
    return origin_with_files(plan, program_sha256(plan.experiment))


def origin_with_files(plan: Plan, files_sha256: str | None) -> Origin:
    """Of runs that this process would make of the plan if :func:`program_sha256` of its experiment were that."""
    return _origin(plan.experiment, files_sha256)._replace(decided=flat(plan.decided))


def _origin(experiment: Experiment, files_sha256: str | None) -> Origin:
    return origin_here()._replace(program=files_sha256, image=image_id(experiment.runtime))
