import sys, time, tempfile, torch, triton, triton.language as tl
from pathlib import Path
from bench.methods import Target, ordered
from bench.models.paper_code import find_model
from bench.result import Timing, Trial
from bench.runner.device import Device
from bench.runner.team import Team
from bench.runner.trial import TrialRun
import bench.runner.halved as H

@triton.jit
def _add(total, more, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(total + at, tl.load(total + at, inside) + tl.load(more + at, inside).to(tl.float32), inside)


MODE = ["plain"]
def adds_to(copy):
    def add(weight):
        g = weight.grad
        if MODE[0] == "plain" or not g.is_contiguous():
            if MODE[0] != "plain": print("not contiguous", g.shape, g.stride())
            copy.grad += g
        else:
            n = g.numel()
            _add[(triton.cdiv(n, 4096),)](copy.grad, g, n, BLOCK=4096, num_warps=8)
        weight.grad = None
    return add
H._adds_to = adds_to
S = ordered(["tf32", "kernels", "half-weights", "fused-optimizer", "compile-blocks"])
for name, mb in ((a.split("@")[0], int(a.split("@")[1])) for a in sys.argv[1:]):
    with tempfile.TemporaryDirectory() as scratch:
        run = TrialRun(Trial(find_model(name), S, mb, 1, 0, Timing()), Device("cuda"), Team(), Path(scratch), lambda _: None)
        run.prepare()
        for mode in ("plain", "triton", "plain", "triton"):
            MODE[0] = mode
            run.step(3); torch.cuda.synchronize()
            t = time.perf_counter(); run.passes(12, 12); torch.cuda.synchronize()
            print(name, mb, mode, round((time.perf_counter() - t) / 12 * 1000, 2), "ms a pass", flush=True)
        del run
    import gc; gc.collect(); torch.cuda.empty_cache()
