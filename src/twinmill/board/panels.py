"""What the live board shows, as pure functions of a RunView: full panels, and one plain line.

From 110 columns on there are two columns of panels, else one, which fits into 80 by 24 with two clusters;
lines that are too long are cut, not wrapped.
"""

import time

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from . import units
from .points import Event, Step
from .state import Phase, RunView
from .summary import ALARM

RECENT_S = 30.0
"""how far back "how busy" looks"""
_RECENT_STEPS = 8
_TWO_COLUMNS = 110
_AGE_STYLES = ("cyan", "green", "yellow", "dark_orange", "red")
_LEVEL_STYLES = {"warning": "yellow", "error": "bold red", "alarm": "bold red"}


def panels(view: RunView, *, title: str, width: int, now: float, damaged: int = 0) -> RenderableType:
    """The whole board, at most `width` columns wide. `now`: seconds since the epoch, for elapsed and
    remaining time."""
    elapsed = units.clock(now - view.first if view.first else 0)
    head = Rule(Text.assemble(("twinmill", "bold"), f"  {title}  ", (elapsed, "dim")), align="left", style="dim")
    blocks = [learning(view, width), mills(view, now), weights(view), health(view, damaged)]
    if width >= _TWO_COLUMNS:
        body = Table.grid(padding=(0, 3), expand=True)
        body.add_column(ratio=1)
        body.add_column(ratio=1)
        body.add_row(Group(blocks[0], "", blocks[2]), Group(blocks[1], "", blocks[3]))
        parts: list[RenderableType] = [body]
    else:
        parts = blocks
    return Group(head, phases(view, width, now), *parts, *events(view, 4 if width >= _TWO_COLUMNS else 2))


def phases(view: RunView, width: int, now: float) -> RenderableType:
    """Finished phases with their time, the running one with its progress and the time left."""
    text = Text(no_wrap=True, overflow="ellipsis")
    finished: dict[str, float] = {}
    for phase in view.phases:
        if phase.end is not None:
            finished[phase.name] = finished.get(phase.name, 0.0) + phase.end - phase.start
    for name, seconds in finished.items():
        text.append(f"{name} ", "green").append(f"✓ {units.clock(seconds)}   ", "dim")
    for phase in (phase for phase in view.phases if phase.end is None):
        done, left, words = progress(view, phase, now)
        text.append(f"{phase.name} ", "bold")
        if done is not None:
            text.append(units.bar(done, 12 if width < _TWO_COLUMNS else 20), "cyan").append(" ")
        text.append(words)
        if left is not None:
            text.append(f" · {units.clock(left)} left", "bold")
        text.append("   ")
    return text if view.phases else Text("waiting for the first phase", "dim")


def progress(view: RunView, phase: Phase, now: float) -> tuple[float | None, float | None, str]:
    """(share done, seconds left, in words) of a running phase. None = nothing says how long it will be."""
    spent = max(0.0, now - phase.start)
    if phase.name == "experts" and view.experts:
        share = view.experts.done / max(1, view.experts.of)
        return share, spent / share * (1 - share) if share else None, f"{view.experts.done}/{view.experts.of} played"
    done = len(view.of(phase.name))
    if phase.steps and done:
        share = min(1.0, done / phase.steps)
        return share, spent / share * (1 - share), f"step {done}/{phase.steps}"
    if phase.steps:
        return 0.0, None, f"step 0/{phase.steps}"
    if phase.seconds:
        share = min(1.0, spent / phase.seconds)
        return share, phase.seconds * (1 - share), f"{units.clock(spent)} of {units.clock(phase.seconds)}"
    return None, None, f"step {done} · {units.clock(spent)}" if done else units.clock(spent)


def learning(view: RunView, width: int) -> RenderableType:
    table = _table("learning")
    steps = _latest_steps(view)
    source = steps[-1].report.source if steps else "rl"
    room = max(8, (width // 2 if width >= _TWO_COLUMNS else width) - 34)
    if source != "rl" and steps:
        losses = [step.loss for step in steps if step.loss is not None]
        value = f"{losses[-1]:.3f} nats" if losses else units.DASH
        table.add_row(f"{source} loss", _value(value, units.sparkline(losses, room), "cyan"))
        for point in view.heldout[-2:]:
            table.add_row(f"held-out, {point.stage}", f"{point.loss:.3f} nats per token")
        return table
    rewards = [step.report.reward for step in steps if step.report.reward is not None]
    latest = rewards[-_RECENT_STEPS:]
    mean = f"{sum(latest) / len(latest):.3f}" if latest else units.DASH
    table.add_row("reward", _value(mean, units.sparkline(rewards, room), "cyan"))
    table.add_row("pass@1 held out", _held_out(view))
    varied = [step.report.varied_frac for step in steps[-_RECENT_STEPS:]]
    table.add_row("varied groups", units.percent(sum(varied) / len(varied) if varied else None))
    table.add_row("staleness", _ages(view.staleness(_RECENT_STEPS)))
    return table


def mills(view: RunView, now: float) -> RenderableType:
    table = _table("mills", f"busy, last {RECENT_S:.0f} s")
    for lane in view.lanes():
        busy = view.busy_frac(lane, now - RECENT_S, now)
        text = Text.assemble((units.bar(busy or 0, 8), "green"), f" {units.percent(busy):>5}  ")
        table.add_row(lane, text.append(_beside(view, lane, now), "dim"))
    if not view.spans:
        table.add_row("", Text("nothing yet", "dim"))
    return table


def weights(view: RunView) -> RenderableType:
    table = _table("weights")
    last = view.publishes[-1] if view.publishes else None
    if last is None:
        table.add_row("version", Text("none yet", "dim"))
        return table
    behind = min((engine.serving for engine in view.engines.values()), default=last.version)
    table.add_row("version", f"v{last.version}, slowest engine at v{behind}")
    share = last.delta_bytes / last.full_bytes if last.full_bytes else None
    sizes = f"{units.size(last.delta_bytes)} of {units.size(last.full_bytes)} ({units.percent(share, 1)})"
    table.add_row("delta of full", sizes)
    pauses = sorted(swap.pause_s for swap in view.swaps)
    if pauses:
        middle = pauses[len(pauses) // 2]
        text = f"{units.short_time(middle)}, worst {units.short_time(pauses[-1])}"
        table.add_row("swap pause", text)
    repaired = sum(swap.repaired for swap in view.swaps)
    if repaired:
        table.add_row("repaired", Text(f"{repaired} from the full version", "yellow"))
    return table


def health(view: RunView, damaged: int) -> RenderableType:
    table = _table("health")
    steps = view.of("rl")
    if steps:
        report = steps[-1].report
        fresh = units.small(report.fresh.k3) if report.fresh.tokens else units.DASH
        stale = units.small(report.stale.k3) if report.stale.tokens else units.DASH
        table.add_row("mismatch k3", f"{fresh} same version, {stale} older")
        share = units.percent(report.replayed_frac, 2) if report.tokens else units.DASH
        replayed = f"{share}, clipped {units.percent(report.clipped_frac, 1)}"
        table.add_row("replayed", replayed)
    failures, lost = int(view.totals.get("infra_failures", 0)), int(view.totals.get("lost", 0))
    episodes = units.count(view.totals.get("episodes", 0))
    text = f"{failures} failures, {lost} lost of {episodes} episodes"
    table.add_row("infrastructure", Text(text, "yellow" if failures or lost else ""))
    share = view.hack_frac(_RECENT_STEPS)
    if share is not None:
        rules = ", ".join(f"{n} {rule}" for rule, n in list(view.hacks().items())[:3])
        text = f"{units.percent(share, 1)}" + (f" lately; {rules}" if rules else "")
        table.add_row("hacks", Text(text, "bold red" if share >= ALARM else "yellow" if share else ""))
    unread = damaged + len(view.malformed) + sum(view.unknown.values())
    if unread:
        table.add_row("metrics", Text(f"{unread} lines could not be read", "yellow"))
    return table


def events(view: RunView, most: int) -> list[RenderableType]:
    """The latest events, one line each, the last one at the bottom."""
    shown: list[RenderableType] = []
    for event in view.events[-most:]:
        line = Text(event_line(event), _LEVEL_STYLES.get(event.level, "dim"))
        line.no_wrap, line.overflow = True, "ellipsis"
        shown.append(line)
    return shown


def event_line(event: Event) -> str:
    """Example: "15:10:32  restarted  engine/west: killed by SIGKILL"."""
    text = " ".join(event.text.split())
    return f"{time.strftime('%H:%M:%S', time.localtime(event.t))}  {event.what}  {text}"


def plain(view: RunView, now: float) -> str:
    """The board as one line, for logs and pipes."""
    parts = [f"[{units.clock(now - view.first if view.first else 0)}]"]
    phase = view.phase
    if phase is None:
        return f"{parts[0]} waiting for the first phase"
    if phase.end is None:
        _, left, words = progress(view, phase, now)
        parts.append(f"{phase.name} {words}" + (f", {units.clock(left)} left" if left is not None else ""))
    else:
        parts.append(f"{phase.name} done")
    steps = _latest_steps(view)
    if steps:
        report, loss = steps[-1].report, steps[-1].loss
        if loss is not None and report.source != "rl":
            parts.append(f"loss {loss:.3f}")
        if report.reward is not None:
            parts.append(f"reward {report.reward:.3f}")
            parts.append(f"varied {units.percent(report.varied_frac)}")
            parts.append("age " + " ".join(f"{a}:{units.percent(f)}" for a, f in view.staleness(_RECENT_STEPS).items()))
            parts.append(f"k3 {units.small(report.fresh.k3)}/{units.small(report.stale.k3)}")
    if view.held_out():
        parts.append("pass@1 " + _held_out(view).plain)
    busy = {lane: view.busy_frac(lane, now - RECENT_S, now) for lane in view.lanes()}
    if busy:
        parts.append("busy " + " ".join(f"{lane} {units.percent(share)}" for lane, share in busy.items()))
    share = view.hack_frac(_RECENT_STEPS)
    if share:
        parts.append(f"hacks {units.percent(share, 1)}")
    failures = int(view.totals.get("infra_failures", 0))
    if failures:
        parts.append(f"infrastructure failures {failures}")
    return " | ".join(parts)


# ---- pieces


def _latest_steps(view: RunView) -> list[Step]:
    """Steps of the source that was trained on last."""
    return view.of(view.steps[-1].report.source) if view.steps else []


def _table(name: str, note: str = "") -> Table:
    table = Table(
        box=None, padding=(0, 1), show_edge=False, expand=True, header_style="", title_justify="left", pad_edge=False
    )
    table.add_column(Text(name, "bold"), no_wrap=True, width=16)
    table.add_column(Text(note, "dim"), no_wrap=True, overflow="ellipsis", ratio=1)
    return table


def _value(value: str, line: str, style: str) -> Text:
    return Text.assemble(f"{value:<10} ", (line, style))


def _held_out(view: RunView) -> Text:
    evals = view.held_out()
    if not evals:
        return Text(units.DASH)
    last = evals[-1]
    text = Text(
        f"{units.percent(last.pass_at_1, 1)} [{100 * last.ci_low:.1f}, {100 * last.ci_high:.1f}] v{last.version}"
    )
    pair = view.before_and_after()
    if pair:
        text.append(f", from {units.percent(pair[0].pass_at_1, 1)}", "dim")
    return text


def _ages(shares: dict[int, float]) -> Text:
    """Age -> share as a small histogram: "0 ▇ 61 %  1 ▄ 30 %"."""
    text = Text()
    for age, share in shares.items():
        style = _AGE_STYLES[min(age, len(_AGE_STYLES) - 1)]
        block = units.sparkline([0, share, 1], 3)[1]
        text.append(f"{age} ").append(block, style).append(f" {units.percent(share)}  ")
    return text if shares else Text(units.DASH)


def _beside(view: RunView, lane: str, now: float) -> str:
    """What is worth knowing beside how busy a lane is."""
    role, _, cluster = lane.partition("/")
    if role == "rollout":
        rollout = view.rollouts.get(cluster)
        if rollout is not None:
            return f"{rollout.in_flight} in flight, {rollout.open_slots} slots"
        return f"{view.open_slots(cluster)} slots open"
    if role == "engine":
        found = [engine for name, engine in view.engines.items() if name.startswith(f"{cluster}/")]
        if found:
            speed = sum(engine.tokens_per_s for engine in found)
            return f"v{min(engine.serving for engine in found)}, {units.count(speed)} tok/s"
    if role == "train":
        return f"waits {units.percent(view.waiting_frac(now - RECENT_S, now))}"
    return ""
