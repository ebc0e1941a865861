"""The process's size and its high-water mark, as the kernel counts them."""

from pathlib import Path


class Peak:
    """The mark of resident memory, which can be set back to the present size."""

    def now(self) -> int:
        """Bytes that are resident."""
        return self._field("VmRSS")

    def read(self) -> int:
        """The most that was resident since the mark was set back."""
        return self._field("VmHWM")

    def reset(self) -> None:
        """Set the mark back."""
        Path("/proc/self/clear_refs").write_text("5")

    def _field(self, name: str) -> int:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith(name):
                    return int(line.split()[1]) * 1024
        raise RuntimeError(f"/proc/self/status has no {name}")
