"""A kernel that keeps as many multiprocessors busy as it has programs, for the load of `benchmarks/gpu_load.py`."""

# Triton reads the kernel's annotations, hence none but its own.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

SIDE = 128
WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _multiply(a_pointer, out_pointer, rounds, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    at = tl.arange(0, SIDE)
    a = tl.load(a_pointer + at[:, None] * SIDE + at[None, :])
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for _ in range(rounds):
        total = tl.dot(a, a, total)
    tl.store(out_pointer + tl.program_id(0) * SIDE + at, tl.sum(total, 1))


class BusyKernel:
    """Launches it.

    Args:
        torch: the module.
    """

    def __init__(self, torch: Any) -> None:
        self.multiprocessors: int = torch.cuda.get_device_properties(0).multi_processor_count
        self._a = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
        self._out = torch.empty(self.multiprocessors * SIDE, device="cuda", dtype=torch.float32)

    def __call__(self, busy: int, rounds: int) -> None:
        """So many multiprocessors multiply so many times, all at once; nothing but their own memory is read."""
        _multiply[(busy,)](self._a, self._out, rounds, SIDE=SIDE, num_warps=WARPS)
