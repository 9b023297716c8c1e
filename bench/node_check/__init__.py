"""Node checks: the checks, their findings, the manifest of a check, and the comparison of many nodes.

Imports bundle and below. Inside, from the bottom: judging, checks, then results, manifest and fleet. Others
call `check_results` for the results of one node and `fleet` for many; `runner.check` has the measuring
processes.
"""

from typing import Literal

CHECK_SCHEMA: Literal["bench/check-results/v1"] = "bench/check-results/v1"  # of a node check's results.json
