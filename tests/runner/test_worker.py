"""Exceptions are classified: exhausted memory is an outcome, after which a smaller micro-batch is tried."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from bench.records.trial import Crashed, OutOfMemory
from bench.runner.machine.disk_room import no_room
from bench.runner.processes.worker import classify

NCCL = """NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error \
(run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'"""
HOST = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "OutOfMemoryError: CUDA out of memory. Tried"),
        (
            torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"),
            "AcceleratorError: CUDA error: out of memory",
        ),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        ),
        (
            RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
            "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        ),
        (
            RuntimeError("Triton Error [CUDA]: out of memory"),
            "RuntimeError: Triton Error [CUDA]: out of memory",
        ),
        (torch.distributed.DistBackendError(NCCL), "DistBackendError: Cuda failure 2 'out of memory'"),
    ],
)
def test_all_messages_of_exhausted_gpu_memory_are_recognised(error: Exception, said: str) -> None:
    assert classify(error) == OutOfMemory("gpu", said)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(HOST)])
def test_exhausted_host_memory_is_recognised(error: Exception) -> None:
    outcome = classify(error)
    assert isinstance(outcome, OutOfMemory)
    assert outcome.where == "host"


FULL = torch.OutOfMemoryError("CUDA out of memory")


def after_memory_ran_out(error: Exception, *, cause: Exception | None, hidden: bool) -> Exception:
    error.__context__, error.__cause__, error.__suppress_context__ = FULL, cause, hidden
    return error


@pytest.mark.parametrize(("cause", "hidden"), [(FULL, True), (None, False)], ids=["from it", "meanwhile"])
def test_errors_that_hide_exhausted_memory_are_reported_as_such(
    cause: Exception | None, hidden: bool
) -> None:
    error = after_memory_ran_out(ValueError("the hook failed"), cause=cause, hidden=hidden)
    assert classify(error) == OutOfMemory("gpu", "OutOfMemoryError: CUDA out of memory")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("out of resource: shared memory, Required: 262144, Hardware limit: 232448"),
        RuntimeError("DataLoader worker (pid 7) exited: it is out of shared memory\nRaise its limit"),
        RuntimeError("CppCompileError: C++ compile error\ncc1plus: out of memory allocating 65536 bytes"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        after_memory_ran_out(RuntimeError("raised instead of it"), cause=None, hidden=True),
    ],
)
def test_other_failures_are_crashes_that_keep_their_first_line(error: Exception) -> None:
    assert classify(error) == Crashed(f"RuntimeError: {str(error).splitlines()[0]}")


def test_a_failure_without_a_message_is_reported_by_its_type() -> None:
    assert classify(AssertionError()) == Crashed("AssertionError:")


def test_the_last_line_of_an_nccl_error_is_reported() -> None:
    where = "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error\nLast error:\n"
    why = "socketPollConnect: connect to 172.17.0.1<45643> returned Connection refused"
    assert classify(torch.distributed.DistBackendError(where + why)) == Crashed(f"DistBackendError: {why}")
    assert "unhandled system error" in str(classify(torch.distributed.DistBackendError(where)))


def caused_by(cause: Exception) -> Exception:
    error = RuntimeError("backend='inductor' raised")
    error.__cause__ = cause
    return error


FULL_DISK = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
NUMPY_S = "Not enough free space to write 16777216 bytes after offset 128"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FULL_DISK, "[Errno 28] No space left on device"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "Disk quota exceeded"),
        (OSError(NUMPY_S), NUMPY_S),
        (caused_by(FULL_DISK), "[Errno 28] No space left on device"),
        (
            RuntimeError("C++ compile error\nas: /tmp/x.o: No space left on device"),
            "as: /tmp/x.o: No space left on device",
        ),
    ],
)
def test_a_full_scratch_disk_is_named_and_is_not_an_outcome(
    error: Exception, said: str, tmp_path: Path
) -> None:
    scratch = tmp_path / "bench-run-1" / "bench-2"
    scratch.mkdir(parents=True)
    full = no_room(error, scratch)
    assert full is not None
    assert full.where == str(tmp_path), "where the user finds it once the job's own folders are gone"
    assert "B free: " in full.reason
    assert said in full.reason


def test_a_full_cache_is_named_by_its_folder(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "kernel.so"))
    full = no_room(error, Path("/"))
    assert full is not None
    assert full.where == str(tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EACCES, os.strerror(errno.EACCES)),
        RuntimeError("unable to write to file </torch_7_0>: No space left on device (28)"),
        torch.distributed.DistBackendError(
            "Error while creating shared memory segment /dev/shm/nccl-1 (size 96): No space left on device"
        ),
        ValueError("no"),
    ],
)
def test_other_os_errors_stay_outcomes(error: Exception, tmp_path: Path) -> None:
    assert no_room(error, tmp_path) is None
    assert isinstance(classify(error), Crashed)
