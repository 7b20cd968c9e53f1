"""Support for tests that run their own file as several torch.distributed processes, with the arguments RANK STORE
DEVICE."""

import contextlib
import os
import subprocess
import sys

import torch

WORLD = 2
DEVICES = ["cpu"] + ["cuda"] * (torch.cuda.device_count() >= WORLD)


def run_all(file, tmp_path, device, parts):
    """Runs the file as WORLD processes. Each must exit with 0 and print " ok" once for each of its parts."""
    command = [sys.executable, os.path.abspath(file)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), device], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in range(WORLD)
    ]
    try:
        outputs = [rank.communicate(timeout=240)[0].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, output in zip(ranks, outputs):
        assert rank.returncode == 0 and output.count(" ok") == parts, output


@contextlib.contextmanager
def process_group():
    """A context for the processes of run_all: yields (rank, device) while the default process group exists."""
    rank, store, device = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, init_method="file://" + store, rank=rank, world_size=WORLD)
    try:
        yield rank, device
    finally:
        torch.distributed.destroy_process_group()
