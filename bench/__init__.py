"""Measure how long it would take to pre-train a model on this machine.

Each term has one meaning in code, files and output. These are the ones that the code needs; docs/glossary.md
has all of them.

manifest     a JSON file that says what to measure; it never says where
model        an architecture together with its recipe
family       the code that builds one kind of architecture and counts its operations
recipe       how a model is trained: batch, steps, precision, optimizer, objective
method       one change that affects speed or memory and leaves the mathematics unchanged
setting      the methods in force together; the empty setting is called "naive"
free-lunch   the setting of all methods that cost nothing and that the model supports
micro-batch  the samples of one pass on one GPU
pass         forward and backward computation over one micro-batch
accumulation the number of passes that one GPU makes between two updates
step         the accumulation passes and one update; a recipe counts steps
trial        one setting of one model at one micro-batch, run in a separate process
outcome      how a trial ended: measured, out-of-memory, unsupported, timed-out or crashed
measurement  the raw samples of a trial
estimate     what follows from a measurement: days, utilisation, intervals
ceiling      the best rate that this machine reached on a bare operation; tables call it the limit
run          one execution of a manifest on one machine
bundle       the file that a run produces: manifest, results, samples and logs, signed
check        one question about a node's health, answered with a verdict
operator     the person who requests a run on a machine that need not be trusted
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers take it for true; typing.TYPE_CHECKING would take longer than all else

if TYPE_CHECKING:
    from bench.base.errors import BadInput, BenchError, EnvironmentCannot, VerificationFailed
    from bench.library.compare import ComparedBundles, compare
    from bench.library.plan import PlannedRun, plan
    from bench.library.predict import Predictions, predict
    from bench.library.run import MeasuredRun, run
    from bench.library.verify import CheckedBundle, verify
else:
    _MODULES = {
        "bench.base.errors": ("BadInput", "BenchError", "EnvironmentCannot", "VerificationFailed"),
        "bench.library.compare": ("ComparedBundles", "compare"),
        "bench.library.plan": ("PlannedRun", "plan"),
        "bench.library.predict": ("Predictions", "predict"),
        "bench.library.run": ("MeasuredRun", "run"),
        "bench.library.verify": ("CheckedBundle", "verify"),
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name):
        """Import a public name when it is first used: `import bench` alone imports nothing."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


__all__ = [
    "BadInput",
    "BenchError",
    "CheckedBundle",
    "ComparedBundles",
    "EnvironmentCannot",
    "MeasuredRun",
    "PlannedRun",
    "Predictions",
    "VerificationFailed",
    "__version__",
    "compare",
    "plan",
    "predict",
    "run",
    "verify",
]
