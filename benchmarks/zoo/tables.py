"""What was measured, as tables and as verdicts on targets."""

import re
from statistics import median
from typing import Any

Rows = list[dict[str, Any]]
_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}


def advice_of(sentence: str) -> int | None:
    """The budget that a refusal names, in bytes."""
    found = re.search(r"raise the budget to ([0-9.]+) (kB|MB|GB)", sentence)
    return None if found is None else int(float(found[1]) * _UNITS[found[2]] * 1.0005)


def report(rows: Rows) -> str:
    """All tables, in Markdown."""
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["name"], {})[row["way"]] = row
    models = {n: w for n, w in by_name.items() if not any(r.get("is_script") for r in w.values())}
    programs = {n: w for n, w in by_name.items() if n not in models}
    parts = [_steps(models, "model"), _steps(programs, "script"), _truths(models)]
    parts.append(_budgets(by_name))
    failed = [f"* {r['name']}, {r['way']}: {r['error']}" for r in rows if "error" in r]
    if failed:
        parts.append("\n".join(["Errors and refusals:", "", *failed]))
    return "\n\n".join(part for part in parts if part)


def _ratio(ours: dict[str, Any], plain: dict[str, Any], what: str) -> float | None:
    """Of all first steps, of steady ones, or of the highest peak, over plain."""
    a, b = ours.get("times", []), plain.get("times", [])
    count = min(len(a), len(b))
    if count < 4 or "error" in ours:
        return None
    if what == "first":
        return sum(a[:count]) / sum(b[:count])
    if what == "steady":
        return median(a[count // 2 : count]) / median(b[count // 2 : count])
    return max(ours["peaks"][:count]) / max(1, *plain["peaks"][:count])


def _same(ways: dict[str, dict[str, Any]]) -> str:
    zero, plain = ways.get("zero", {}), ways.get("plain", {})
    if "weights" in zero and "weights" in plain:
        if zero["weights"] == plain["weights"]:
            return "yes"
        one, two = (ways.get(f"{way}, one thread", {}).get("weights") for way in ("zero", "plain"))
        return "with one thread" if one is not None and one == two else "NO"
    if "printed" in zero and "printed" in plain:
        from benchmarks.zoo.scripts import losses_of

        one, two = losses_of(zero["printed"]), losses_of(plain["printed"])
        return "?" if not two else "yes" if one == two else "NO"
    return "-"


def _steps(groups: dict[str, dict[str, dict[str, Any]]], what: str) -> str:
    if not groups:
        return ""
    head = [what, "plain step", "plain peak", "same bits at 0", "time, peak at 0", "bytes at 0"]
    head += ["first steps", "steady step", "peak", "bytes", "saved / storages"]
    lines = [head]
    columns: dict[str, list[float]] = {}
    for name, ways in groups.items():
        plain, zero, default = (ways.get(w, {}) for w in ("plain", "zero", "default"))
        if not plain.get("times"):
            continue
        cells = [name, f"{median(plain['times']):.2f} s", f"{max(plain['peaks']) / 1e6:.0f} MB"]
        cells.append(_same(ways))
        found = {
            "zero": _ratio(zero, plain, "first"),
            "zero peak": _ratio(zero, plain, "peak"),
            "first": _ratio(default, plain, "first"),
            "steady": _ratio(default, plain, "steady"),
            "peak": _ratio(default, plain, "peak"),
        }
        for key, value in found.items():
            if value is not None:
                columns.setdefault(key, []).append(value)
        cells.append(f"{_say(found['zero'])}, {_say(found['zero peak'])}")
        cells.append(_say(zero.get("ratio"), 1))
        cells += [_say(found[key]) for key in ("first", "steady", "peak")]
        cells.append(_say(default.get("ratio"), 1))
        told = zero.get("saved", 0) / zero["storages"] if zero.get("storages") else None
        cells.append(_say(told))
        lines.append(cells)
    summary = [
        f"{key}: median {median(values):.2f}, worst {max(values):.2f}"
        for key, values in columns.items()
    ]
    return "\n".join([_markdown(lines), "", f"{len(lines) - 1} of them. " + "; ".join(summary)])


def _truths(models: dict[str, dict[str, dict[str, Any]]]) -> str:
    lines = [["model", "passes", "true, median", "worst", "within", "predicted within 2x"]]
    lines[0] += ["parameters above 3x", "worst parameter"]
    inside = near = total = 0
    for name, ways in models.items():
        rows = ways.get("truth", {}).get("rows", [])
        if not rows:
            continue
        true = [row["true"] for row in rows]
        within = sum(t <= 0.1 for t in true)
        known = [r for r in rows if r["predicted"] > 0 and r["true"] > 0]
        close = sum(0.5 <= r["predicted"] / r["true"] <= 2 for r in known)
        inside, near, total = inside + within, near + close, total + len(rows)
        worst = max(rows, key=lambda row: row["worst"])
        lines.append(
            [
                name,
                str(len(rows)),
                f"{median(true):.2g}",
                f"{max(true):.2g}",
                f"{within}/{len(rows)}",
                f"{close}/{len(known)}",
                f"{max(row['above'] for row in rows)} of {worst['parameters']}",
                f"{worst['worst']:.2g}",
            ]
        )
    if not total:
        return ""
    end = f"Within the tolerance: {inside} of {total} passes; predicted within a factor of two: "
    return "\n".join([_markdown(lines), "", f"{end}{near} of {total}."])


def _budgets(groups: dict[str, dict[str, dict[str, Any]]]) -> str:
    lines = [["budget of 60 %", "plain peak", "budget", "taken", "verdict", "advice"]]
    for name, ways in groups.items():
        plain, row, again = (ways.get(w, {}) for w in ("plain", "memory", "advice"))
        if not row or not plain.get("peaks"):
            continue
        whole = (plain["base"] + max(plain["peaks"])) / 1e6
        advice = ""
        if again:
            advice = f"{again['budget'] / 1e6:.0f} MB: {_verdict(again)}"
        taken = f"{_taken(row) / 1e6:.0f} MB" if row.get("peaks") else "-"
        cells = [name, f"{whole:.0f} MB", f"{row['budget'] / 1e6:.0f} MB", taken]
        lines.append([*cells, _verdict(row), advice])
    return _markdown(lines) if len(lines) > 1 else ""


def _verdict(row: dict[str, Any]) -> str:
    if "error" in row:
        return "refused" if "budget" in row["error"] else "failed"
    return "met" if _taken(row) <= row["budget"] else "EXCEEDED"


def _taken(row: dict[str, Any]) -> int:
    return row.get("base", 0) + max(row.get("peaks", [0]))


def _say(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _markdown(lines: list[list[str]]) -> str:
    head, *rest = lines
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *rest])
