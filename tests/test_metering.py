"""That explain() names the memory that is really used."""

import random
import subprocess
import sys

import pytest
import torch

from heedful import Causal, Padding, Sinks, Window, attention, explain
from heedful.kernels.native import library
from heedful.problem import AttentionProblem

EDGES = [1, 8, 9, 63, 65, 129, 200, 300, 700, 1100]
KERNELS = ["reference", "online", "torch_sdpa"]


def peak_of(call):
    """Return the largest number of bytes that PyTorch's allocator had given out at once, and what the call returned."""
    with torch.profiler.profile(profile_memory=True) as profile:
        results = call()
    assert profile.profiler is not None
    events = profile.profiler.kineto_results.events()
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak, results


def draw(seed):
    """Return query, key, value and options of a random problem."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    dtype = choose.choice([torch.float32, torch.bfloat16, torch.float16])
    B, Hkv, group = choose.randint(1, 2), choose.randint(1, 3), choose.choice([1, 1, 2, 4])
    Tq, Tk, Hq = choose.choice(EDGES), choose.choice(EDGES), Hkv * group
    D = choose.choice([8, 32, 40, 64])
    Dv = choose.choice([D, D, 24])
    tensors = [
        torch.randn(B, heads, tokens, size, dtype=dtype)
        for heads, tokens, size in ((Hq, Tq, D), (Hkv, Tk, D), (Hkv, Tk, Dv))
    ]
    if choose.random() < 0.3:
        tensors = [tensor.mT.contiguous().mT for tensor in tensors]
    masks = [
        *(None, Causal("end"), Causal("start"), Window(20, "end") | Sinks(2)),
        *(Padding([Tk // 2] * B), Padding([Tk] * B) & Causal("end"), torch.rand(Tq, Tk) > 0.5),
        *(torch.rand(B, Hq, Tq, Tk) > 0.5, torch.rand(Tk) > 0.5),
    ]
    options = {"mask": choose.choice(masks)}
    if isinstance(options["mask"], torch.Tensor):
        options["mask"] = torch.atleast_2d(options["mask"])
    if choose.random() < 0.3:
        shape = choose.choice([(Tq, Tk), (Hq, 1, Tk), (B, Hq, Tq, Tk)])
        options["bias"] = torch.randn(shape, dtype=choose.choice([dtype, torch.float32]))
    if choose.random() < 0.2:
        options["softcap"] = 5.0
    if choose.random() < 0.2:
        options["sinks"] = torch.randn(Hq)
    if choose.random() < 0.2:
        options["dropout_p"] = 0.1
    if choose.random() < 0.3:
        options["return_lse"] = True
    if choose.random() < 0.3:
        for tensor in tensors:
            tensor.requires_grad_()
    return tensors, options


def assert_close(said, used, what):
    assert abs(said - used) <= 0.2 * max(said, used) + 2**16, (said, used, what)


@pytest.mark.parametrize("kernel", [*KERNELS, "native"])
@pytest.mark.parametrize("threads", [1, 3])
def test_explain_names_the_scratch_that_is_really_used(kernel, threads):
    torch.set_num_threads(threads)
    for seed in range(60):
        tensors, options = draw(seed)
        plan = explain(*tensors, kernel="auto", **options)
        if kernel != plan.kernel and kernel in dict(plan.others):
            reason = dict(plan.others)[kernel]
            if not reason.startswith("could run it"):
                continue
        said = explain(*tensors, kernel=kernel, **options).scratch_bytes
        peak, results = peak_of(lambda: attention(*tensors, kernel=kernel, **options))  # noqa: B023
        outputs = results if options.get("return_lse") else (results,)
        used = peak - sum(output.nbytes for output in outputs)
        if kernel == "native":  # what the library allocates is not PyTorch's
            problem = AttentionProblem(*tensors, **options)
            if not (options.get("return_lse") or problem.needs_grad):
                # Under the profiler, the operator computes the log-sum-exp.
                used -= 4 * outputs[0][..., 0].numel()
            used += core_bytes(problem, threads)
        assert_close(said, used, (seed, kernel, options, [tensor.shape for tensor in tensors]))


def core_bytes(problem, threads):
    from heedful.kernels.native import structs

    sizes = structs.pack_sizes(problem.sizes, problem.query.dtype)
    return library.library.heedful_forward_scratch(sizes, threads)


@pytest.mark.skipif(sys.platform != "linux", reason="the size of the process is read from /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("Tq", "Tk"), [(200, 300), (1, 5000)])
def test_the_library_allocates_what_it_says(dtype, Tq, Tk):
    """Memory is filled up to the largest size so far, so that any allocation raises the peak of the address space."""
    program = f"""
import mmap, torch
from heedful import attention, explain
torch.set_num_threads(1)
def status(name):
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))
small = torch.zeros(1, 1, 1, 8, dtype=torch.{dtype})
attention(small, small, small, kernel="native")
query = torch.zeros(1, 2, {Tq}, 8000, dtype=torch.{dtype})
key = torch.zeros(1, 2, {Tk}, 8000, dtype=torch.{dtype})
said = explain(query, key, key, kernel="native").scratch_bytes
ballast = mmap.mmap(-1, max(status("VmPeak") - status("VmSize"), 4096))
before = status("VmPeak")
output = attention(query, key, key, kernel="native")
print(said, status("VmPeak") - before - output.nbytes)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, used = map(int, done.stdout.split())
    assert said > 2**22
    assert_close(said, used, program)
