"""Pure: how many nodes and workers there are, which node this is, and where they meet."""

from __future__ import annotations

from dataclasses import dataclass

from traceml_client.protocol.errors import ConfigError
from traceml_launch.commandline.job_environment import host_of
from traceml_launch.commandline.layers import Layers

DEFAULT_MASTER_ADDR = "127.0.0.1"
DEFAULT_MASTER_PORT = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The fields of `LaunchConfig` of the same names."""

    nproc_per_node: str
    num_local_ranks: int
    nnodes_min: int
    nnodes_max: int
    node_rank: int | None
    is_dynamic_rendezvous: bool
    master_addr: str
    master_port: int | None
    rdzv_endpoint_host: str


def place(layers: Layers, *, num_cpus: int) -> Placement:
    """Raises ConfigError where counts and ranks contradict one another."""
    nnodes_min, nnodes_max = layers.get("nnodes", tuple) or (1, 1)
    _ignore_the_job_of_another_size(layers, nnodes_max)
    nproc_per_node = layers.get("nproc-per-node", str) or "1"
    is_dynamic = _is_dynamic(layers)
    if nnodes_min != nnodes_max and not is_dynamic:
        raise ConfigError(f"--nnodes {nnodes_min}:{nnodes_max} needs a rendezvous backend, such as --rdzv-backend c10d")
    endpoint_host = host_of(layers.torchrun("--rdzv-endpoint"))
    is_static_multi_node = nnodes_max > 1 and not is_dynamic
    return Placement(
        nproc_per_node=nproc_per_node,
        num_local_ranks=_num_local_ranks(nproc_per_node, num_cpus),
        nnodes_min=nnodes_min,
        nnodes_max=nnodes_max,
        node_rank=_node_rank(layers, nnodes_max, is_dynamic=is_dynamic),
        is_dynamic_rendezvous=is_dynamic,
        master_addr=layers.get("master-addr", str) or DEFAULT_MASTER_ADDR,
        master_port=layers.get("master-port", int) or (DEFAULT_MASTER_PORT if is_static_multi_node else None),
        rdzv_endpoint_host=endpoint_host,
    )


def _ignore_the_job_of_another_size(layers: Layers, nnodes_max: int) -> None:
    """A user who launches fewer nodes than the job has does not mean the job's node ranks and first node."""
    derived = layers.job.values.get("nnodes")
    if derived is not None and derived[1] not in (str(nnodes_max), f"{nnodes_max}:{nnodes_max}"):
        found = layers.find("nnodes")
        if found is not None and not found.is_derived:
            layers.ignored_job_keys.update(("node-rank", "master-addr", "master-port"))


def _is_dynamic(layers: Layers) -> bool:
    return bool(layers.torchrun("--standalone")) or layers.torchrun("--rdzv-backend") not in ("", "static")


def _num_local_ranks(nproc_per_node: str, num_cpus: int) -> int:
    if nproc_per_node == "cpu":
        return num_cpus
    return int(nproc_per_node) if nproc_per_node.isdigit() else 0


def _node_rank(layers: Layers, nnodes_max: int, *, is_dynamic: bool) -> int | None:
    found = layers.find("node-rank")
    node_rank = layers.get("node-rank", int)
    if node_rank is None:
        return None if is_dynamic and nnodes_max > 1 else 0
    if node_rank >= nnodes_max:
        source = found.source if found is not None else "--node-rank"
        raise ConfigError(
            f"{source}: {node_rank} is out of range: with --nnodes {nnodes_max} it is 0 to {nnodes_max - 1}"
        )
    return node_rank
