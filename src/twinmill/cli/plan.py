"""`twinmill weights plan`: what the weights of any model would cost to keep in step, before there is a run."""

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from twinmill.publish.plan import Lever, Plan

console = Console()


def plan(
    *,
    params: float | None = None,
    model: Path | None = None,
    lr: float | None = None,
    mean_u: float | None = None,
    median_w: float | None = None,
    expert_share: float | None = None,
    expert_use: float | None = None,
    cold: bool = False,
    format: str | None = None,
    up_bytes_per_s: float | None = None,
    down_bytes_per_s: float | None = None,
    streams: int | None = None,
    stream_bytes_per_s: float | None = None,
    latency_s: float | None = None,
    object_bytes: int | None = None,
    smallest_object_bytes: int | None = None,
    trainer_cores: int | None = None,
    engine_hosts: int | None = None,
    engine_cores: int | None = None,
    engine_ranks: int | None = None,
    encode_gb_s: float | None = None,
    decode_gb_s: float | None = None,
    device_bytes_per_s: float | None = None,
    device_memory_bytes_per_s: float | None = None,
    stop_s: float | None = None,
    step_s: float | None = None,
    moe_layers: int | None = None,
    experts: int | None = None,
    top_k: int | None = None,
    step_tokens: float | None = None,
    routes_up_bytes_per_s: float | None = None,
    over_bound: float | None = None,
    over_bound_cold: float | None = None,
    tile_elements: int | None = None,
    tile_bytes: float | None = None,
    json: bool = False,
) -> None:
    """Bytes, seconds and pause of a version of any model, before there is one, and what binds.

    Args:
        params: number of weights, e.g. 1e12
        model: Hugging Face folder whose weights are looked at; gives params and the experts' share where they are not given
        lr: learning rate, per step
        mean_u: mean |optimizer step| / lr: 0.9 at the first step, 0.26 ten later, 0.19 after thirty
        median_w: median |weight|, when no model is given
        expert_share: share of the weights that are experts
        expert_use: share of the steps in which an expert gets a gradient
        cold: the first step after a 16-bit checkpoint
        format: bf16, or a quantiser: fp8_block/1, fp8_block_f32/1, nvfp4/1, mxfp4/1
        up_bytes_per_s: link from the trainer to the store; 0 = unlimited
        down_bytes_per_s: link from the store to a cluster; 0 = unlimited
        streams: requests in flight
        stream_bytes_per_s: what the store gives to one of them
        latency_s: seconds before a request's first byte
        object_bytes: largest object
        smallest_object_bytes: objects are not cut smaller to fill the streams
        trainer_cores: cores that encode
        engine_hosts: hosts over which one copy of the model is spread
        engine_cores: cores of each that decode
        engine_ranks: devices over which one copy of the model is spread
        encode_gb_s: GB of weights per second of one core, as measured; 0 = the curve of a C codec
        decode_gb_s: the same for decoding
        device_bytes_per_s: from a host to each device
        device_memory_bytes_per_s: of one device
        stop_s: seconds until generation stands still
        step_s: seconds from one version to the next
        moe_layers: mixture layers, whose choices are recorded for router replay
        experts: routed experts of such a layer
        top_k: how many of them a token uses
        step_tokens: tokens of a step that one cluster plays, prompts included
        routes_up_bytes_per_s: link from a cluster to the store, by which recorded experts go; 0 = unlimited
        over_bound: codec: coded bits over the fewest possible
        over_bound_cold: the same at a cold step
        tile_elements: elements that are coded together
        tile_bytes: what a tile costs beyond its bits
        json: print one JSON object instead
    """
    given = {name: value for name, value in locals().items() if value is not None and value is not False}
    from twinmill.publish.exponents import model_shape
    from twinmill.publish.plan import PlanConfig, levers
    from twinmill.publish.plan import plan as make

    shape = model_shape(model) if model else None
    config = PlanConfig(**{name: value for name, value in given.items() if name in PlanConfig.__struct_fields__})
    made = make(config, shape)
    helps = levers(made, shape)
    if json:
        print(json_text.dumps(as_json(made, helps)))
    else:
        console.print(rendered(made, helps))


def as_json(made: "Plan", helps: "list[Lever]") -> dict[str, Any]:
    """Everything that the table says, in bytes and seconds."""
    import msgspec

    return {
        "params": made.config.params,
        "format": made.config.format,
        "changed_frac": made.change.density,
        "bits_per_change": made.change.bits_per_change,
        "full_bytes": made.full_bytes,
        "bound_bytes": made.bound_bytes,
        "bytes_per_step": made.bytes_per_step,
        "ratio": made.ratio,
        "core_s": made.core_s,
        "stages": {stage.name: {"seconds": stage.seconds, "limit": stage.limit} for stage in made.stages},
        "pause_s": made.seconds("pause"),
        "total_s": made.total_s,
        "binds": made.binds.name,
        "routes": None if made.routes is None else made.routes._asdict(),
        "levers": [{"text": lever.text, "saves_s": lever.saves_s} for lever in helps],
        "config": msgspec.to_builtins(made.config),
    }


def rendered(made: "Plan", helps: "list[Lever]") -> Group:
    config, change = made.config, made.change
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_row("weights", f"{config.params:.4g} in {config.format}, {_size(made.full_bytes)}")
    facts.add_row("a step changes", f"{change.density:.3%} of them, at {change.bits_per_change:.2f} bits each at least")
    facts.add_row("bytes per step", f"{_size(made.bytes_per_step)}, 1/{made.ratio:.0f} of the model")
    if made.routes is not None:
        facts.add_row("recorded experts", _routes(made))
    stages = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("stage", "seconds", "core seconds", "waits for"):
        stages.add_column(name, justify="right" if "seconds" in name else "left")
    for stage in made.stages:
        core_s = f"{made.core_s[stage.name]:.0f}" if stage.name in made.core_s else ""
        style = "bold yellow" if stage is made.binds else ""
        stages.add_row(stage.name, f"{stage.seconds:.3f}", core_s, stage.limit, style=style)
    stages.add_row("in all", f"{made.total_s:.3f}", "", "", style="bold")
    return Group(facts, "", stages, "", _verdict(made, helps))


def _routes(made: "Plan") -> Text:
    """What router replay sends up from every cluster."""
    config, routes = made.config, made.routes
    assert routes is not None
    text = Text(
        f"{config.top_k} of {config.experts} in {config.moe_layers} layers: {routes.bytes_per_token:.1f} bytes a token "
        f"(at least {routes.bound_bytes_per_token:.1f})"
    )
    if config.step_tokens:
        text.append(
            f", {_size(routes.bytes_per_step)} a step from a cluster that plays {config.step_tokens:.3g} tokens of it"
        )
        late = routes.seconds > config.step_s
        text.append(f", {routes.seconds:.3g} s of its link", "bold red" if late else "")
        text.append(f": more than the {config.step_s:g} s of a step" if late else "")
    return text


def _verdict(made: "Plan", helps: "list[Lever]") -> Text:
    """What binds, whether it keeps up, and what to change."""
    stage, step_s = made.binds, made.config.step_s
    text = Text.assemble(
        (f"{stage.name} binds", "bold yellow"),
        f": {stage.seconds:.2f} of {made.total_s:.2f} s wait for {stage.limit}. ",
    )
    if stage.seconds > step_s:
        text.append(f"It does not keep up with a version every {step_s:g} s. ", "bold red")
    elif made.total_s > step_s:
        text.append(f"It keeps up with a version every {step_s:g} s only where stages overlap. ", "yellow")
    wishes = [f"{lever.text} ({lever.saves_s:.2f} s)" for lever in helps[:3]]
    text.append(f"What would save most: {'; '.join(wishes)}." if wishes else "Nothing that can be changed would help.")
    return text


def _size(nbytes: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes / 1e3:.3g} kB"
