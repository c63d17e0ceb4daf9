"""What a measurement was taken on: without it a number says nothing (Section 13.5, external validity).

Both records are plain dicts of JSON types, so that results written on different machines can be put side by side.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
from pathlib import Path
from typing import Any

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def machine_record(device: str = "cpu") -> dict[str, Any]:
    """Processor, cores, threads PyTorch uses, instruction set, caches and memory; for CUDA the GPU as well."""
    import torch

    from ..options import host_instruction_set

    record: dict[str, Any] = {
        "processor": processor_name(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "cores": usable_cores(),
        "cores_in_all": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instruction_set": host_instruction_set(),
        "caches": data_caches(),
        "last_level_cache_bytes": last_level_cache(),
        "memory_bytes": total_memory(),
        "load_average": load_average(),
        "device": "cpu",
    }
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(torch.device(device))
        record["device"] = properties.name
        record["device_memory_bytes"] = properties.total_memory
        record["multiprocessors"] = properties.multi_processor_count
    return record


def version_record() -> dict[str, str]:
    """Versions of what can change a result. Packages that are not loaded are not imported to be asked."""
    from importlib import metadata

    versions = {"python": platform.python_version()}
    for package in ("staxlab", "torch", "triton", "jax", "jaxlib", "halide", "apache-tvm"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return versions


def command_line() -> str:
    """How this process was started, without the directories of the interpreter and the script."""
    original = getattr(sys, "orig_argv", None) or [sys.executable, *sys.argv]
    program = Path(original[0]).name
    rest = [Path(a).name if os.path.isabs(a) else a for a in original[1:]]
    return " ".join([program, *rest]) if len(" ".join(rest)) < 400 else f"{program} ..."


def timestamp() -> str:
    """Now, in UTC, to the second, as ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def processor_name() -> str:
    """The processor's marketing name, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown processor"


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def data_caches(root: Path = _CACHES) -> list[dict[str, int]]:
    """The data caches that the first core reports, nearest first: ``level`` from 1, ``bytes`` of one of them, and how
    many cores it is ``shared_by``. Empty where the system does not say."""
    found = []
    for index in sorted(root.glob("index*")):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            text = (index / "size").read_text().strip()
            scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
            size = int(text.rstrip("KMG")) * scale
        except (OSError, ValueError):
            continue
        level, cores = _read(index / "level"), _read(index / "shared_cpu_list")
        found.append({"level": int(level) if level.isdigit() else len(found) + 1, "bytes": size,
                      "shared_by": _count(cores)})  # fmt: skip
    return sorted(found, key=lambda cache: cache["level"])


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _count(cores: str) -> int:
    """How many cores a list such as ``0-3,8`` names; 1 for what is no such list."""
    try:
        ends = [[int(end) for end in part.split("-")] for part in cores.split(",")]
    except ValueError:
        return 1
    return sum(part[-1] - part[0] + 1 for part in ends)


def cache_capacity(cache: dict[str, int], threads: int) -> int:
    """Bytes that ``threads`` threads, packed onto as few caches as they fit on, find in all caches of one level.

    >>> cache_capacity({"level": 2, "bytes": 1 << 20, "shared_by": 2}, 3) >> 20
    2
    """
    return cache["bytes"] * -(-threads // max(cache["shared_by"], 1))


def last_level_cache(root: Path = _CACHES) -> int | None:
    """Bytes of the largest data cache the first core reports; None where the system does not say."""
    return max((cache["bytes"] for cache in data_caches(root)), default=None)


def total_memory() -> int | None:
    """Bytes of main memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def load_average() -> float | None:
    """Processes that wanted to run during the last minute, on average; None where the system does not say."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def busy_note(record: dict[str, Any]) -> str | None:
    """A warning when other processes were using the machine before a measurement began; None when it was quiet."""
    load, cores = record.get("load_average"), record.get("cores_in_all") or 1
    if load is None or load < 0.5 * cores:
        return None
    return f"the machine was busy before measuring (load {load:g} on {cores} cores): figures may be too low"
