"""What examples/cluster/ has for schedulers is of their form, and torchrun takes what it is given there."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml
from torch.distributed.run import get_args_parser

from testbed.experiment.runtimes.docker import DEFAULT_IMAGE
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
from transports.torch_backend.environment import require_known

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "examples" / "cluster"


def test_kubernetes_gives_each_rank_a_name_that_the_others_find() -> None:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    service, job = documents
    assert [(each["apiVersion"], each["kind"]) for each in documents] == [("v1", "Service"), ("batch/v1", "Job")]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    torchrun = get_args_parser().parse_args(container["args"])
    assert torchrun.nnodes == str(spec["completions"]) == str(spec["parallelism"])
    assert (spec["completionMode"], service["spec"]["clusterIP"]) == ("Indexed", "None")
    host, _, port = torchrun.rdzv_endpoint.partition(":")
    assert host == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert [each["port"] for each in service["spec"]["ports"]] == [int(port)]
    assert container["image"].partition(":")[0] == DEFAULT_IMAGE.partition(":")[0]
    assert (ROOT / "examples" / torchrun.training_script).is_file()
    variables = {each["name"]: each["value"] for each in container["env"]}
    require_known(variables)
    assert variables["TESTBED_COLLECTIVE"] in COLLECTIVES.kinds()
    assert variables["TESTBED_CHANNEL"] in CHANNELS.kinds()


def test_slurm_starts_one_torchrun_on_each_node() -> None:
    path = FOLDER / "slurm.sh"
    subprocess.run(["bash", "-n", str(path)], check=True)
    text = path.read_text()
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.MULTILINE))
    assert options["ntasks-per-node"] == "1"
    (line,) = (line for line in text.replace("\\\n", " ").splitlines() if line.startswith("srun "))
    torchrun = get_args_parser().parse_args(shlex.split(line)[2:])
    assert torchrun.nnodes == "$SLURM_JOB_NUM_NODES"
    assert torchrun.rdzv_endpoint == "$HEAD_NODE:29400"
    assert (ROOT / torchrun.training_script).is_file()
    require_known(dict.fromkeys(re.findall(r"\bTESTBED_[A-Z]+", text), ""))
