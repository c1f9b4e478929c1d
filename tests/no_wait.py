"""A mode under which nothing may wait for the device: what a CUDA graph could not hold fails on a CPU, too."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

WAITS = {"_local_scalar_dense", "item", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim"}


class NoWait(TorchDispatchMode):
    """Refuses every operation whose result the host needs before it can go on. It does not see ``tolist``."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in WAITS, f"{func} waits"
        return func(*args, **(kwargs or {}))
