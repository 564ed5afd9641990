"""Data parallelism: devices of one or several machines that share each batch."""

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .runs import RunError

ADDRESS, PROCESSES, PROCESS = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
DAY = 24 * 60 * 60
# The variables in which clusters known to `jax.distributed` give the number of processes.
CLUSTERS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


class Devices(NamedTuple):
    """Devices that each process a part of every batch. All other arrays are replicated.

    A step is one program for all devices, and its sums over the batch run across the devices. The
    results do not depend on the number of devices, except for rounding.
    """

    mesh: Mesh

    @classmethod
    def of(cls, number: int | Literal["all"], batch_size: int) -> "Devices":
        """Returns this many devices of this machine, or all devices of all processes."""
        devices = jax.devices()
        if number != "all":
            if not 1 <= number <= len(devices):
                raise RunError(
                    f"{number} devices were asked for, but JAX sees {len(devices)} "
                    f"({devices[0].platform}). Ask for 1 to {len(devices)} devices."
                )
            if jax.process_count() > 1 and number < len(devices):
                raise RunError(
                    f"{number} devices were asked for, but a run of several processes uses all "
                    f"{len(devices)}. Use --devices all."
                )
            devices = devices[:number]
        if batch_size % len(devices):
            raise RunError(
                f"A batch of {batch_size} images cannot be divided evenly among {len(devices)} "
                "devices. Choose another batch size, or another number of devices."
            )
        return cls(Mesh(np.array(devices), ("batch",)))

    @property
    def writes(self) -> bool:
        """Whether this process writes the run folder. Only the first process does."""
        return jax.process_index() == 0

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def on_all(self, tree: Any) -> Any:
        """Copies arrays to every device. They must be the same in all processes."""
        return jax.device_put(tree, self.everywhere)

    def share(self, batch: jax.Array) -> jax.Array:
        """Divides the first axis among the devices. For use inside a compiled program."""
        return jax.lax.with_sharding_constraint(
            batch, NamedSharding(self.mesh, PartitionSpec("batch"))
        )

    def of_the_first(self, tree: Any) -> Any:
        """Returns the arrays of the first process, in all processes."""
        if jax.process_count() == 1:
            return tree
        return multihost_utils.broadcast_one_to_all(tree)

    def here(self, tree: Any) -> Any:
        """Copies replicated arrays to the first device of this process."""
        return jax.tree.map(lambda array: jnp.asarray(np.asarray(array)), tree)


def join(environment: Mapping[str, str] = os.environ) -> None:
    """Connects to the other processes of this run, if the environment names any.

    They are given by $JAX_COORDINATOR_ADDRESS, $JAX_NUM_PROCESSES and $JAX_PROCESS_ID, or by Slurm
    or Open MPI. This function must be called before any other use of JAX.
    """
    if ADDRESS in environment:
        try:
            processes, process = int(environment[PROCESSES]), int(environment[PROCESS])
        except (KeyError, ValueError):
            raise RunError(
                f"${ADDRESS} is set, but ${PROCESSES} is {environment.get(PROCESSES)!r} and "
                f"${PROCESS} is {environment.get(PROCESS)!r}. Set both to numbers."
            ) from None
        if not 0 <= process < processes:
            raise RunError(
                f"${PROCESS} is {process} and ${PROCESSES} is {processes}. Number the processes "
                f"from 0 to ${PROCESSES} - 1."
            )
        _initialize(environment[ADDRESS], processes, process)
    elif any(
        environment.get(name, "").isdigit() and int(environment[name]) > 1 for name in CLUSTERS
    ):
        _initialize()


def _initialize(*where: Any) -> None:
    # JAX's preemption service would catch SIGTERM, but SIGTERM should end this program.
    jax.config.update("jax_enable_preemption_service", False)
    # At the end all processes wait for the first, which evaluates. If it dies, JAX stops them.
    jax.distributed.initialize(*where, shutdown_timeout_seconds=DAY)
