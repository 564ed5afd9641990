"""The devices that share a batch, on one machine or on several."""

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
# Clusters that `jax.distributed` knows by itself, by the number of processes they announce.
CLUSTERS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


class Devices(NamedTuple):
    """Each takes its part of every batch; model, optimisers and control variates are on all.

    A step is one program for all of them, in which sums over the batch go over the devices: the
    same numbers up to rounding, however many there are.
    """

    mesh: Mesh

    @classmethod
    def of(cls, number: int | Literal["all"], batch_size: int) -> "Devices":
        """That many devices of this machine, or all of all machines that have joined."""
        devices = jax.devices()
        if number != "all":
            if not 1 <= number <= len(devices):
                raise RunError(
                    f"{number} devices were asked for, but JAX sees {len(devices)} "
                    f"({devices[0].platform})."
                )
            if jax.process_count() > 1 and number < len(devices):
                raise RunError("Several processes share all their devices: say --devices all.")
            devices = devices[:number]
        if batch_size % len(devices):
            raise RunError(
                f"A batch of {batch_size} cannot be shared evenly by {len(devices)} devices. "
                "Choose a batch size that is a multiple of their number, or fewer devices."
            )
        return cls(Mesh(np.array(devices), ("batch",)))

    @property
    def writes(self) -> bool:
        """Whether this process keeps the run's folder: the first of them does."""
        return jax.process_index() == 0

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def on_all(self, tree: Any) -> Any:
        """The same arrays on every device. All processes must have the same ones."""
        return jax.device_put(tree, self.everywhere)

    def share(self, batch: jax.Array) -> jax.Array:
        """Inside a program: each device has its part of the first axis."""
        return jax.lax.with_sharding_constraint(
            batch, NamedSharding(self.mesh, PartitionSpec("batch"))
        )

    def of_the_first(self, tree: Any) -> Any:
        """What the first process has, in all of them."""
        if jax.process_count() == 1:
            return tree
        return multihost_utils.broadcast_one_to_all(tree)

    def here(self, tree: Any) -> Any:
        """Arrays that are on all devices, on the first one of this process alone."""
        return jax.tree.map(lambda array: jnp.asarray(np.asarray(array)), tree)


def join(environment: Mapping[str, str] = os.environ) -> None:
    """Join the other processes of this run, if the environment speaks of any:
    $JAX_COORDINATOR_ADDRESS with $JAX_NUM_PROCESSES and $JAX_PROCESS_ID, or a cluster that JAX
    knows (Slurm, Open MPI).

    To be called before JAX is used for anything.
    """
    if ADDRESS in environment:
        try:
            processes, process = int(environment[PROCESSES]), int(environment[PROCESS])
        except (KeyError, ValueError):
            raise RunError(
                f"${ADDRESS} is set, so ${PROCESSES} and ${PROCESS} must be numbers, but they are "
                f"{environment.get(PROCESSES)!r} and {environment.get(PROCESS)!r}."
            ) from None
        if not 0 <= process < processes:
            raise RunError(
                f"${PROCESS} must be from 0 to ${PROCESSES} - 1, but they are {process} and "
                f"{processes}."
            )
        _initialize(environment[ADDRESS], processes, process)
    elif any(
        environment.get(name, "").isdigit() and int(environment[name]) > 1 for name in CLUSTERS
    ):
        _initialize()


def _initialize(*where: Any) -> None:
    # JAX would keep SIGTERM to itself, for programs that ask whether it came: this one is to end.
    jax.config.update("jax_enable_preemption_service", False)
    # At the end all wait for the first, which evaluates. If it dies, they are told.
    jax.distributed.initialize(*where, shutdown_timeout_seconds=DAY)
