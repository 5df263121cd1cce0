# SPDX-License-Identifier: Apache-2.0
"""What the kernels of a step took, by kind, beside what its operators were
predicted to take (train_gpt2's profile= and predict=)."""
import json
import re

# Kind, operators of the prediction, kernels of the trace: the first that fits.
# The kinds are rows of the tables in docs/measurements.md.
KINDS = [
    ("attention", r"scaled_dot_product", r"sdpa|flash|fmha|attention"),
    ("products", r"mm\b|matmul|linear\b|convolution",
     r"gemm|gemv|nvjet|cutlass|splitK|cublas|wgmma"),
    ("optimizer", r"adamw_", r"\bupdate_kernel|multi_tensor.*adam"),
    ("packed gradients", r"pack_", r"\bpack_kernel"),
    ("gradient norm", r"power_sums", r"LpNorm|NormTwoOps|lpnorm_cleanup"),
    ("norms", r"norm", r"norm_kernel|norm_backward|layer_?norm|GammaBeta|RowwiseMoments"),
    ("activation functions", r"gelu|silu|relu", r"gelu|silu|relu"),
]
REST = "all others"
COPIES = "copies"
CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}


def kind_of(name, column):
    """@param column 1: of an operator; 2: of a kernel."""
    for row in KINDS:
        if re.search(row[column], name, re.I):
            return row[0]
    return REST


def kernel_ms(trace, steps):
    """@param trace a Chrome trace of `steps` steps.
    @return milliseconds a step by kind, the longest first; those of streams that
    work at the same time are added up."""
    sums = {}
    for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]:
        if event.get("cat") in CATEGORIES:
            kind = kind_of(event["name"], 2) if event["cat"] == "kernel" else COPIES
            sums[kind] = sums.get(kind, 0) + event["dur"] / 1e3 / steps
    return dict(sorted(sums.items(), key=lambda one: -one[1]))


def predicted_ms(operators):
    """@param operators {name: milliseconds}, of "predicted".
    @return the same by kind."""
    sums = {}
    for name, milliseconds in operators.items():
        kind = kind_of(name, 1)
        sums[kind] = sums.get(kind, 0) + milliseconds
    return sums


def kinds_line(name, kernels, operators):
    """A line of what kernels took, and were predicted to take."""
    predicted = predicted_ms(operators)
    parts = []
    for kind in dict.fromkeys([*kernels, *predicted]):
        text = f"{kind} {kernels.get(kind, 0):.1f}"
        if kind in predicted:
            text += f" (predicted {predicted[kind]:.1f})"
        parts.append(text)
    return f"{name} kernels, ms a step: {', '.join(parts)}"
