"""The modules on which money or trust depend, each with the tests that hold it: its own file comes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Every change of these must be noticed; of others, this share.
WITHOUT_EXCEPTION = ("money", "signatures", "certificates", "recomputation")
LEAST_SHARE = 0.97


@dataclass(frozen=True, slots=True)
class Held:
    """The subject of a module, and the test files that hold it."""

    subject: str
    tests: tuple[str, ...]

    @property
    def least_share(self) -> float:
        """The share of changes that the tests must notice."""
        return 1.0 if self.subject in WITHOUT_EXCEPTION else LEAST_SHARE


def _held(subject: str, tests: str) -> Held:
    return Held(subject, tuple(f"tests/{name}.py" for name in dict.fromkeys(tests.split())))


_BUNDLES = (
    "bundle/test_attacks bundle/test_limits bundle/test_verify bundle/test_operations bundle/test_vectors"
)
# Bundles with floors, gradient checks, and the precisions of products.
_CHECKED = "report/test_floors report/test_gradient_checks report/test_products"
_SIGNING = "signing/test_ssh signing/test_sshsig signing/test_dsse signing/test_trust"
_KEYS = "signing/test_krl signing/test_keyring bundle/test_vectors"
_SEARCH = (
    "planning/test_candidates planning/test_lower_bounds planning/test_guide planning/test_plan"
    " runner/test_measure"
)
_JUDGING = "node_check/checks/test_faults node_check/checks/test_recorded node_check/checks/test_contract"
_DECLARED = "node_check/checks/test_declared node_check/checks/test_elsewhere"
_PREDICTING = (
    "planning/test_predicted_machines planning/test_prediction planning/test_choice"
    " report/test_predicted_estimate"
)
_LIBRARY = "library/test_functions library/test_documents library/test_options bundle/test_forged_bundles"
_MANUAL = "manual/test_entries cli/test_explain"
_PUSHING = "push/test_push_to_node push/test_without_engine"
_COMPARING = "report/test_comparing report/test_formats report/test_floors"
_TEXTS = (
    "report/test_machine_rows report/test_formats report/test_words report/test_escapes report/test_comparing"
)

# Where the code stands now of the 22 modules that the first report on mutants changed at random.
FIRST_REPORT = tuple(
    f"bench/{name}.py"
    for name in (
        "base/fast_json",
        "base/strict_json",
        "bundle/handshake",
        "bundle/held_to_manifest",
        "bundle/pack",
        "bundle/physical_limits",
        "bundle/plausibility",
        "bundle/recompute_run",
        "bundle/stated_manifest",
        "bundle/statement",
        "bundle/tar_format",
        "bundle/verdict",
        "bundle/verify",
        "node_check/judging/judge_figures",
        "node_check/judging/standards",
        "planning/memory_prediction",
        "planning/search/candidates",
        "planning/search/lower_bounds",
        "planning/search/next_trial",
        "records/estimate",
        "records/fastest",
        "records/slowdown",
        "report/compare/appraisal",
        "report/compare/compared_rows",
        "report/compare/comparison",
        "report/compare/decision",
        "report/compare/extrapolate",
        "report/compare/fastest_runs",
        "report/compare/groups",
        "report/compare/offers",
        "report/compare/price_file",
        "report/compare/prices",
    )
)

MODULES: Mapping[str, Held] = {
    "bench/report/compare/appraisal.py": _held(
        "money", "report/test_appraisal report/test_offers report/test_decide"
    ),
    "bench/report/compare/offers.py": _held("money", "report/test_offers report/test_decide"),
    "bench/report/compare/decision.py": _held(
        "money", "report/test_decide report/test_offers report/test_guesses"
    ),
    "bench/report/compare/owning.py": _held("money", "report/test_owning"),
    "bench/report/compare/answers.py": _held("money", "report/test_answers_in_digits report/test_answers"),
    "bench/report/compare/priced_guesses.py": _held("money", "report/test_guesses report/test_answers"),
    "bench/report/compare/prices.py": _held(
        "money", "report/test_prices report/test_price_lists report/test_owning report/test_offers"
    ),
    "bench/report/compare/price_file.py": _held(
        "money", "report/test_prices report/test_price_lists report/test_owning"
    ),
    "bench/report/compare/price_lists.py": _held("money", "report/test_price_lists report/test_prices"),
    "bench/library/budget.py": _held("money", _LIBRARY),
    "bench/report/compare/energy_factors.py": _held("estimates", "report/test_energy_factors"),
    "bench/report/compare/predicted_estimate.py": _held("estimates", "report/test_predicted_estimate"),
    "bench/report/compare/matrix.py": _held("estimates", "report/test_answers"),
    "bench/report/compare/priced_predictions.py": _held(
        "money", "report/test_priced_predictions report/test_prediction_page"
    ),
    "bench/planning/prediction/predicted_machines.py": _held("estimates", _PREDICTING),
    "bench/planning/prediction/step_time.py": _held("estimates", _PREDICTING),
    "bench/planning/prediction/kernel_rates.py": _held(
        "estimates", f"planning/test_kernel_rates {_PREDICTING}"
    ),
    "bench/planning/prediction/card_rates.py": _held("estimates", f"planning/test_card_rates {_PREDICTING}"),
    "bench/planning/prediction/candidates.py": _held("estimates", _PREDICTING),
    "bench/planning/prediction/choice.py": _held("estimates", _PREDICTING),
    "bench/planning/prediction/interruptions.py": _held(
        "estimates", "planning/test_card_rates report/test_priced_predictions planning/test_prediction"
    ),
    "bench/push/host_push.py": _held("pushing", f"push/test_host_push {_PUSHING} push/test_strange_nodes"),
    "bench/push/node_preflight.py": _held(
        "pushing", f"push/test_preflight_steps push/test_node_preflight push/test_missing_kernels {_PUSHING}"
    ),
    "bench/push/push_to_node.py": _held("pushing", f"push/test_node_push {_PUSHING}"),
    "bench/push/engine_choice.py": _held("pushing", "push/test_engine_choice"),
    "bench/push/forecast.py": _held("pushing", "push/test_forecast"),
    "bench/push/place_lock.py": _held("pushing", "push/test_shared_home"),
    "bench/push/out_folder.py": _held("pushing", "push/test_out_folder push/test_mirror"),
    "bench/push/mirror.py": _held("pushing", "push/test_run_status push/test_mirror"),
    "bench/push/remote.py": _held("pushing", "push/test_exchange push/test_remote"),
    "bench/push/answers.py": _held("pushing", "push/test_answer_forms push/test_answers"),
    **{
        f"bench/push/{name}.py": _held("pushing", "push/test_ship_steps push/test_ship")
        for name in ("ship", "send_blobs", "pull_image")
    },
    "bench/push/install_environment.py": _held(
        "pushing", "push/test_installer_steps push/test_install_environment push/test_forecast"
    ),
    "bench/push/shared_place.py": _held("pushing", "push/test_shared_place"),
    "bench/push/over_fabric.py": _held("pushing", "push/test_fabric_steps push/test_over_fabric"),
    "bench/push/training_group.py": _held("pushing", "push/test_training_group"),
    "bench/push/assembly.py": _held("pushing", "push/test_assembly_steps push/test_assembly"),
    "bench/push/image_store.py": _held("pushing", "push/test_image_store push/test_ship"),
    "bench/push/slurm.py": _held("pushing", "push/test_slurm push/test_run_script"),
    "bench/push/slurm_job.py": _held("pushing", "push/test_slurm_job push/test_run_script"),
    "bench/push/run_script.py": _held(
        "pushing", "push/test_run_script_lines push/test_run_script push/test_without_engine"
    ),
    **{
        f"bench/push/kubernetes/{name}.py": _held(
            "pushing",
            "push/test_kubernetes_steps push/test_kubernetes push/test_pod_node push/test_push_to_pods",
        )
        for name in (
            "cluster_preflight",
            "created_job",
            "fields",
            "kubectl",
            "kueue",
            "pod_job",
            "pod_node",
            "pod_state",
            "push_to_pods",
        )
    },
    "bench/runner/processes/meeting_proxy.py": _held(
        "nodes", "runner/test_meeting_proxy_steps runner/test_meeting_proxy"
    ),
    "bench/runner/processes/nodes.py": _held("nodes", "runner/test_nodes_steps runner/test_nodes"),
    "bench/runner/processes/node_member.py": _held("nodes", "runner/test_nodes_steps runner/test_nodes"),
    "bench/environment/adopt.py": _held(
        "environments", "environment/test_adopted_package environment/test_adopt"
    ),
    "bench/environment/contents.py": _held("environments", "environment/test_contents"),
    "bench/environment/identity.py": _held("environments", "environment/test_contents"),
    "bench/environment/store.py": _held(
        "environments", "environment/test_stored_environment environment/test_store"
    ),
    "bench/environment/unpack.py": _held("environments", "environment/test_unpack environment/test_store"),
    "bench/environment/on_node.py": _held("environments", "environment/test_on_node"),
    "bench/environment/confined.py": _held("environments", "environment/test_confined"),
    "bench/environment/landlock.py": _held(
        "environments", "environment/test_landlock environment/test_confined"
    ),
    "bench/environment/interpreter.py": _held("environments", "environment/test_interpreter"),
    "bench/environment/wheel_tags.py": _held("environments", "environment/test_wheel_tags"),
    "bench/signing/allowed_signers.py": _held("signatures", f"signing/test_trust {_KEYS}"),
    "bench/signing/dsse.py": _held("signatures", f"signing/test_dsse {_KEYS}"),
    "bench/signing/sshsig.py": _held("signatures", f"signing/test_sshsig {_SIGNING} {_KEYS}"),
    "bench/signing/ssh_keys.py": _held("signatures", f"{_SIGNING} {_KEYS}"),
    "bench/signing/key_file.py": _held("signatures", "cli/test_keys operator/test_operator"),
    "bench/signing/revocation.py": _held("signatures", _KEYS),
    "bench/bundle/statement.py": _held("signatures", f"bundle/test_statement {_BUNDLES}"),
    "bench/bundle/verify.py": _held("signatures", f"bundle/test_verify {_BUNDLES}"),
    "bench/bundle/verdict.py": _held("signatures", f"bundle/test_verdict {_BUNDLES}"),
    "bench/images/attestation.py": _held("signatures", "images/test_attestation"),
    "bench/bundle/handshake.py": _held("certificates", f"operator/test_operator signing/test_ssh {_BUNDLES}"),
    "bench/operator/certify_and_receive.py": _held(
        "certificates", "operator/test_operator signing/test_keyring"
    ),
    "bench/operator/keyring.py": _held("certificates", "operator/test_operator signing/test_keyring"),
    "bench/operator/ledger.py": _held("certificates", "operator/test_ledger operator/test_operator"),
    "bench/operator/ssh_keygen.py": _held("certificates", "operator/test_ssh_keygen"),
    "bench/bundle/recompute_run.py": _held(
        "recomputation", f"bundle/test_recomputed_run {_BUNDLES} {_CHECKED} runner/test_measure"
    ),
    "bench/bundle/held_to_manifest.py": _held("recomputation", f"bundle/test_held_to_manifest {_BUNDLES}"),
    "bench/bundle/stated_manifest.py": _held("recomputation", f"bundle/test_stated_manifest {_BUNDLES}"),
    "bench/bundle/plausibility.py": _held("recomputation", f"bundle/test_plausibility {_BUNDLES} {_CHECKED}"),
    "bench/bundle/physical_limits.py": _held(
        "recomputation", f"bundle/test_limits {_BUNDLES} node_check/test_results"
    ),
    "bench/bundle/telemetry_limits.py": _held("recomputation", f"bundle/test_limits {_BUNDLES}"),
    "bench/records/products.py": _held("recomputation", "records/test_products report/test_products"),
    "bench/records/genuine_gpus.py": _held("recomputation", "records/test_genuine_gpus"),
    "bench/bundle/tar_format.py": _held("bundles", f"bundle/test_bundle {_BUNDLES}"),
    "bench/bundle/pack.py": _held("bundles", f"bundle/test_bundle {_BUNDLES}"),
    "bench/base/strict_json.py": _held("bundles", f"base/test_codec {_BUNDLES}"),
    "bench/base/fast_json.py": _held("bundles", f"base/test_fast_json base/test_codec {_BUNDLES}"),
    "bench/records/estimate.py": _held("estimates", "records/test_estimate records/test_winner"),
    "bench/records/fastest.py": _held(
        "estimates", f"records/test_winner records/test_summary report/test_gradient_checks {_COMPARING}"
    ),
    "bench/report/compare/extrapolate.py": _held("estimates", f"report/test_scaling {_COMPARING}"),
    "bench/report/compare/comparison.py": _held(
        "estimates",
        f"report/test_comparison_steps report/test_rows_of_a_bundle {_COMPARING} report/test_offers"
        " report/test_guesses records/test_slowdown records/test_marks",
    ),
    "bench/report/compare/compared_rows.py": _held(
        "estimates",
        f"report/test_row_contents report/test_rows_of_a_bundle {_COMPARING} records/test_slowdown"
        " report/test_timeline",
    ),
    **{
        f"bench/report/compare/{name}.py": _held(
            "judging",
            f"report/test_ranked_together report/test_any_order {_COMPARING} report/test_offers"
            " report/test_guesses",
        )
        for name in ("fastest_runs", "groups")
    },
    "bench/report/reproduce/verdicts.py": _held(
        "judging", "report/test_reproduction_in_digits report/test_reproducing"
    ),
    "bench/records/copied.py": _held("judging", "records/test_copied report/test_ranked_together"),
    "bench/records/floor.py": _held("judging", "records/test_floor report/test_floors"),
    "bench/records/gradients.py": _held("judging", "records/test_gradients report/test_gradient_checks"),
    "bench/records/loss_curve.py": _held("judging", "records/test_floor"),
    "bench/records/switches.py": _held("judging", "records/test_switches"),
    "bench/records/marks.py": _held("judging", "records/test_marks_in_digits records/test_marks"),
    "bench/records/slowdown.py": _held("judging", "records/test_slowdown report/test_formats"),
    "bench/node_check/judging/judge_figures.py": _held(
        "judging", f"node_check/judging/test_judge_figures {_JUDGING} node_check/test_results"
    ),
    "bench/node_check/judging/standards.py": _held(
        "judging",
        f"node_check/judging/test_judge_figures node_check/test_published_figures {_JUDGING}"
        " node_check/checks/test_host_errors",
    ),
    **{
        f"bench/node_check/checks/{name}.py": _held(
            "judging",
            f"node_check/checks/test_{name} {_DECLARED} node_check/test_host_checks",
        )
        for name in ("bmc", "drift", "file_systems", "host_errors", "network", "numa", "ports")
    },
    **{
        f"bench/node_check/checks/{name}.py": _held(
            "judging",
            "node_check/checks/test_thresholds node_check/checks/test_measured"
            f" node_check/checks/test_inventories {_JUDGING} {_DECLARED} {more}",
        )
        for name, more in {
            **dict.fromkeys(
                (
                    "alike",
                    "clock",
                    "copies",
                    "disk",
                    "ecc",
                    "fabric",
                    "host_memory",
                    "memory",
                    "nvlink",
                    "own_card",
                    "pcie",
                    "peers",
                    "power",
                    "present",
                    "rows",
                    "strangers",
                ),
                "node_check/test_results",
            ),
            **dict.fromkeys(("agreement", "all_reduce", "matmul", "soak"), "node_check/checks/test_older"),
            "exchange": "node_check/checks/test_pairs",
            "gpudirect": "node_check/checks/test_ports",
            "pairs": "node_check/checks/test_pairs",
            "xid": "node_check/checks/test_xid",
        }.items()
    },
    "bench/node_check/judging/evidence.py": _held(
        "judging",
        "node_check/judging/test_evidence node_check/judging/test_figures"
        f" {_JUDGING} node_check/test_results",
    ),
    "bench/node_check/judging/finding.py": _held(
        "judging", f"node_check/checks/test_question {_JUDGING} node_check/test_results"
    ),
    "bench/node_check/judging/slow_parts.py": _held(
        "judging", "node_check/judging/test_slow_parts node_check/checks/test_pairs"
    ),
    "bench/node_check/judging/round_robin.py": _held("judging", "node_check/judging/test_round_robin"),
    **{
        f"bench/node_check/{name}.py": _held("judging", "node_check/test_reason node_check/test_results")
        for name in ("reason", "recompute_any")
    },
    **{
        f"bench/node_check/{name}.py": _held("judging", f"node_check/checks/test_contract {_DECLARED}")
        for name in ("all_checks", "checks/__init__", "judging/__init__")
    },
    "bench/node_check/check_manifest.py": _held(
        "judging", "node_check/test_manifest node_check/test_manifest_of_results"
    ),
    "bench/node_check/fleet.py": _held(
        "judging", "node_check/test_fleet_in_digits node_check/test_fleet node_check/test_results"
    ),
    "bench/node_check/check_results.py": _held(
        "judging",
        "node_check/test_judged_again node_check/test_manifest_of_results node_check/test_results"
        " node_check/test_fleet",
    ),
    **{
        f"bench/library/{name}.py": _held("library", _LIBRARY)
        for name in (
            "compare",
            "energy",
            "given",
            "given_manifest",
            "machines",
            "plan",
            "predict",
            "verify",
        )
    },
    "bench/library/sealer.py": _held("library", "library/test_sealer"),
    "bench/library/run.py": _held("library", f"library/test_run_request {_LIBRARY}"),
    "bench/base/quantities.py": _held("money", "base/test_quantities report/test_words"),
    "bench/records/spread.py": _held("estimates", "report/test_spreads"),
    "bench/records/mfu.py": _held("estimates", "records/test_mfu"),
    "bench/report/compare/energy.py": _held("estimates", "report/test_energy report/test_energy_factors"),
    "bench/report/compare/episodes.py": _held("reports", "report/test_episodes report/test_timeline"),
    "bench/report/text/comparison_csv.py": _held("reports", _TEXTS),
    "bench/report/text/comparison_table.py": _held("reports", _TEXTS),
    "bench/report/text/machine_rows.py": _held("reports", f"{_TEXTS} report/test_offers report/test_guesses"),
    "bench/push/rent/rental.py": _held("renting", "push/test_rent"),
    "bench/push/rent/dstack.py": _held("renting", "push/test_rent"),
    "bench/push/rent/skypilot.py": _held("renting", "push/test_rent"),
    "bench/runner/machine/telemetry.py": _held(
        "telemetry", "runner/test_telemetry_sampler runner/test_telemetry_reader"
    ),
    "bench/runner/machine/watch.py": _held("telemetry", "runner/test_watch"),
    "bench/runner/processes/supervisor.py": _held(
        "supervision", "runner/test_watched_jobs runner/test_supervise"
    ),
    "bench/base/linux_processes.py": _held("supervision", "base/test_linux_processes runner/test_supervise"),
    "bench/export/standalone/refusals.py": _held("export", "export/test_standalone"),
    "bench/manual/entries.py": _held("manual", _MANUAL),
    "bench/manual/lookup.py": _held("manual", _MANUAL),
    "bench/images/registry.py": _held("images", "images/test_registry"),
    "bench/images/registry_logins.py": _held("images", "images/test_registry_logins"),
    "bench/images/archive.py": _held("images", "images/test_archive"),
    "bench/images/assemble.py": _held("images", "images/test_assemble_steps images/test_assemble"),
    "bench/images/fetch.py": _held("images", "images/test_fetch"),
    "bench/images/package_list.py": _held("images", "images/test_package_list images/test_assemble"),
    "bench/images/locks.py": _held("images", "images/test_locks"),
    "bench/images/skeleton.py": _held("images", "images/test_skeleton images/test_assemble"),
    "bench/images/kernel_layer.py": _held(
        "images", "images/test_kernel_layer_steps images/test_kernel_layer"
    ),
    "bench/images/build_image.py": _held("images", "images/test_build_steps images/test_build"),
    "bench/images/debian_base.py": _held("images", "images/test_debian_base images/test_build"),
    "bench/images/debian_packages.py": _held("images", "images/test_debian_packages"),
    "bench/images/normalise.py": _held("images", "images/test_normalise images/test_archive"),
    "bench/images/transfer.py": _held("signatures", "images/test_transfer images/test_registry"),
    "bench/packages/deb_file.py": _held("images", "packages/test_deb_file images/test_assemble_steps"),
    "bench/images/cosign.py": _held("signatures", "images/test_cosign images/test_registry"),
    "bench/images/sbom.py": _held("images", "images/test_sbom"),
    "bench/images/debian_versions.py": _held("vulnerabilities", "images/test_debian_versions"),
    "bench/images/osv.py": _held("vulnerabilities", "images/test_vulnerabilities"),
    "bench/images/vex.py": _held("vulnerabilities", "images/test_vulnerabilities"),
    "bench/images/vulnerabilities.py": _held("vulnerabilities", "images/test_vulnerabilities"),
    "bench/planning/search/lower_bounds.py": _held("search", _SEARCH),
    "bench/planning/search/candidates.py": _held("search", _SEARCH),
    "bench/planning/search/next_trial.py": _held("search", f"planning/test_next_trial {_SEARCH}"),
    "bench/planning/search/tried_trials.py": _held("search", "planning/test_candidates"),
    "bench/planning/search/learnt_memory.py": _held("search", "planning/test_fits planning/test_guide"),
    "bench/planning/memory_prediction.py": _held(
        "search", "planning/test_memory_in_digits planning/test_memory planning/test_fits"
    ),
}
