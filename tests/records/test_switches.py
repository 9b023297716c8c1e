"""The environment variables that are recorded, and those of them that set two runs apart."""

from __future__ import annotations

from bench.records.switches import deciding, differences, kept, others


def test_variables_that_torch_and_its_libraries_obey_are_kept() -> None:
    environment = {
        "NVIDIA_TF32_OVERRIDE": "1", "PYTORCH_ALLOC_CONF": "expandable_segments:True", "NCCL_ALGO": "Ring",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "OMP_NUM_THREADS": "4", "CUDA_LAUNCH_BLOCKING": "1",
    }  # fmt: skip
    others = {"HOME": "/home/alice", "AWS_SECRET_ACCESS_KEY": "s", "PATH": "/bin"}
    assert kept(environment | others) == environment


def test_locations_and_addresses_are_left_out() -> None:
    assert not kept({
        "CUDA_VISIBLE_DEVICES": "0", "TORCHINDUCTOR_CACHE_DIR": "/home/alice/i", "CUDA_HOME": "/opt/cuda",
        "NCCL_COMM_ID": "10.0.0.1:29400", "NCCL_HOSTID": "alice-1", "TORCH_LOGS": "+dynamo",
    })  # fmt: skip


def test_only_the_last_part_of_a_path_is_kept() -> None:
    preload, topology = "/home/alice/lib/libjemalloc.so.2:/usr/lib/x.so", "/etc/nccl/h200.xml"
    assert kept({"LD_PRELOAD": preload, "NCCL_TOPO_FILE": topology}) == {
        "LD_PRELOAD": "libjemalloc.so.2:x.so", "NCCL_TOPO_FILE": "h200.xml",
    }  # fmt: skip


def test_kept_values_contain_no_control_characters() -> None:
    assert kept({"OMP_PLACES": "\x1b[2J\udcff", "NCCL_DEBUG": "x" * 5000}) == {
        "NCCL_DEBUG": "x" * 200, "OMP_PLACES": "?[2J?",
    }  # fmt: skip


def test_wiring_and_thread_variables_do_not_set_runs_apart() -> None:
    assert deciding({"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4", "TRITON_F32_DEFAULT": "ieee"}) == {
        "TRITON_F32_DEFAULT": "ieee"
    }


def test_every_switch_decides_or_is_one_of_the_others() -> None:
    switches = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4", "TRITON_F32_DEFAULT": "ieee"}
    assert others(switches) == {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4"}
    assert {**others(switches), **deciding(switches)} == switches


def test_what_differs_between_two_machines_is_told_by_name() -> None:
    here, there = {"B": "1", "A": "2", "SAME": "3"}, {"B": "4", "C": "5", "SAME": "3"}
    assert list(differences(here, there, "not set")) == [
        "A 2 here, not set there",
        "B 1 here, 4 there",
        "C not set here, 5 there",
    ]
    assert list(differences({"A": "1"}, {}, "missing", ("mine", "yours"))) == ["A 1 mine, missing yours"]
    assert list(differences(here, here, "not set")) == []
