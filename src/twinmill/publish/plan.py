"""What a version will cost, from trainer to engines, before there is any: bytes, seconds, pause, and what binds.

    encode    every trainer core compares its share of the new weights with the old and codes what differs
    upload    objects in parallel streams through one link, then the manifest
    fetch     the same, the other way; every cluster has its own link
    decode    every engine host decodes what its ranks hold, beside what is served
    pause     stop, copy positions and values to the devices, scatter, go on

The stages are counted one after the other. Tiles can overlap them; then the longest stage is what remains. Not counted:
optimizer and quantiser on the trainer, hashing (3 % of decoding), a link that is shared, lost requests.
"""

from collections.abc import Callable, Mapping
from math import ceil, log
from typing import NamedTuple

import numpy as np
from msgspec import Struct, structs

from twinmill.store.routes import Code

from .errors import Refused
from .exponents import ModelShape
from .predict import BF16_GRID, Change, Grid, merged, predict, rare_use, typical
from .quantise import QUANTISERS

GRIDS: Mapping[str, Grid] = {
    "bf16": BF16_GRID,
    "fp8_block/1": Grid(3, -6, 128 * 128, 448.0, power_of_two=True),
    "fp8_block_f32/1": Grid(3, -6, 128 * 128, 448.0),
    "nvfp4/1": Grid(1, 0, 16, 6.0, flips=1.25),
    "mxfp4/1": Grid(1, 0, 32, 6.0, power_of_two=True),
}
"""what is published -> the values it can have; a quantised stream goes by its quantiser's name"""

ENCODE_RATES = ((0.0022, 5.1), (0.0133, 2.55), (0.0332, 1.6), (0.1, 0.96), (0.45, 0.57))
DECODE_RATES = ((0.0022, 4.5), (0.0133, 3.3), (0.0332, 2.7), (0.1, 1.67), (0.45, 0.68))
"""(share changed, GB of weights per second of one core): a C codec of 12 exponent classes on one Zen 4 core"""
ANCHOR_RATIO = 1.5
"""by which a full version shrinks, as byte planes under zstd"""
SECTOR_BYTES = 64
"""traffic of one scattered write in device memory: a sector of 32 bytes, read and written"""


class PlanConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, how it is trained, and the road to the engines of one cluster."""

    params: float = 0.0
    """weights of the model; 0 = those of the model that is given"""
    lr: float = 1e-6
    """learning rate of Adam, per step"""
    mean_u: float = 0.26
    """mean |optimizer step| / lr: about 0.9 at the first step, 0.26 ten steps later, 0.19 after thirty"""
    median_w: float = 0.0135
    """median magnitude of the weights; not used when a model is given"""
    expert_share: float | None = None
    """share of the weights that are experts; None = that of the model that is given, else 0: dense"""
    expert_use: float = 1.0
    """share of the steps in which an expert gets any gradient"""
    cold: bool = False
    """the first step after a 16-bit checkpoint, which has a law of its own"""
    format: str = "bf16"
    """what is published: bf16, or the name of a quantiser"""
    over_bound: float = 1.013
    """codec: coded bits over the fewest possible"""
    over_bound_cold: float = 1.07
    """the same at a cold step"""
    tile_elements: int = 1 << 20
    """elements that are coded together"""
    tile_bytes: float = 50.0
    """what a tile costs beyond its bits"""
    encode_gb_s: float = 0.0
    """GB of weights that a core encodes per second; 0 = the measured curve over the share changed"""
    decode_gb_s: float = 0.0
    """the same for decoding"""
    trainer_cores: int = 256
    """cores of the trainer that encode"""
    up_bytes_per_s: float = 12.5e9
    """link of the trainer to the store; 0 = unlimited"""
    down_bytes_per_s: float = 12.5e9
    """link of the cluster to the store; 0 = unlimited"""
    streams: int = 128
    """requests in flight, in either direction"""
    stream_bytes_per_s: float = 80e6
    """what the store gives to one request"""
    latency_s: float = 0.05
    """seconds before a request's first byte"""
    object_bytes: int = 64_000_000
    """largest object"""
    smallest_object_bytes: int = 8_000_000
    """objects are not cut smaller to fill the streams"""
    engine_hosts: int = 8
    """hosts over which one copy of the model is spread"""
    engine_cores: int = 64
    """cores per host that decode"""
    engine_ranks: int = 64
    """devices over which one copy of the model is spread"""
    device_bytes_per_s: float = 42e9
    """from host to device, per rank (PCIe 5 x16, as it is reached)"""
    device_memory_bytes_per_s: float = 3e12
    """of one device"""
    stop_s: float = 0.03
    """seconds until a running forward pass has ended and the next may begin: one step of generation"""
    step_s: float = 300.0
    """seconds from one version to the next"""
    moe_layers: int = 0
    """mixture layers, whose choices are recorded for router replay; 0 = those of the model that is given"""
    experts: int = 0
    """routed experts of such a layer; 0 = those of the model that is given"""
    top_k: int = 0
    """how many of them a token uses; 0 = those of the model that is given"""
    step_tokens: float = 0.0
    """tokens of a step that one cluster plays, prompts included; their experts go up with the episodes. 0 = not counted"""
    routes_up_bytes_per_s: float = 1.25e9
    """link of a cluster to the store; 0 = unlimited"""


class Stage(NamedTuple):
    name: str
    seconds: float
    limit: str
    """what it waits for"""


class Uplink(NamedTuple):
    """What router replay sends from a cluster to the store."""

    bytes_per_token: float
    bound_bytes_per_token: float
    """the fewest, where a router likes all sets of experts equally"""
    bytes_per_step: float
    seconds: float
    """on the cluster's link"""


class Plan(NamedTuple):
    config: PlanConfig
    change: Change
    full_bytes: float
    """the model, as it is published"""
    bound_bytes: float
    """the fewest that a step's change can take"""
    bytes_per_step: float
    stages: tuple[Stage, ...]
    core_s: dict[str, float]
    """core seconds of encode and decode"""
    scatter_bytes_per_rank: float
    routes: Uplink | None = None
    """None = a dense model, or none that is known"""

    @property
    def total_s(self) -> float:
        """From the end of a step to serving it."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def binds(self) -> Stage:
        return max(self.stages, key=lambda stage: stage.seconds)

    @property
    def ratio(self) -> float:
        return self.full_bytes / self.bytes_per_step if self.bytes_per_step else float("inf")

    def seconds(self, stage: str) -> float:
        return next(s.seconds for s in self.stages if s.name == stage)


def plan(config: PlanConfig, shape: ModelShape | None = None) -> Plan:
    """The cost of one version. shape: binades of a real model (exponents.model_shape); None = typical ones."""
    config = _completed(config, shape)
    change = _change(config, shape)
    width = _bytes_per_param(config.format)
    full = config.params * width
    over = config.over_bound_cold if config.cold else config.over_bound
    bits = change.bits_per_param * over + 8 * config.tile_bytes / config.tile_elements
    nbytes = config.params * bits / 8
    core_s = {
        "encode": full / 1e9 / (config.encode_gb_s or _rate(ENCODE_RATES, change.density)),
        "decode": full / 1e9 / (config.decode_gb_s or _rate(DECODE_RATES, change.density)),
    }
    cores = config.engine_hosts * config.engine_cores
    # a position of 32 bits and the new value, which is at least a byte
    scatter = change.density * config.params * (4 + max(1, round(width))) / config.engine_ranks
    stages = (
        Stage("encode", core_s["encode"] / config.trainer_cores, f"{config.trainer_cores} trainer cores"),
        _transfer("upload", nbytes, config.up_bytes_per_s, config),
        _transfer("fetch", nbytes, config.down_bytes_per_s, config),
        Stage("decode", core_s["decode"] / cores, f"{cores} cores on {config.engine_hosts} engine hosts"),
        _pause(scatter, change.density * config.params / config.engine_ranks, config),
    )
    bound = config.params * change.bits_per_param / 8
    return Plan(config, change, full, bound, nbytes, stages, core_s, scatter, _routes(config))


def _routes(config: PlanConfig) -> Uplink | None:
    if not config.moe_layers or not config.top_k:
        return None
    code = Code(config.experts, config.top_k)
    each, bound = (config.moe_layers * bits / 8 for bits in (code.bits, code.bound_bits))
    nbytes, link = each * config.step_tokens, config.routes_up_bytes_per_s
    return Uplink(each, bound, nbytes, nbytes / link if link else 0.0)


class Lever(NamedTuple):
    """Something to change, and what it saves of the total."""

    text: str
    saves_s: float


def levers(made: Plan, shape: ModelShape | None = None) -> list[Lever]:
    """What would help, most first: each is tried out."""
    found = []
    for text, turn in _LEVERS.items():
        saved = made.total_s - plan(turn(made.config), shape).total_s
        if saved > 0.001 * made.total_s:
            found.append(Lever(text, saved))
    return sorted(found, key=lambda lever: -lever.saves_s)


def _times(factor: float, field: str) -> Callable[[PlanConfig], PlanConfig]:
    def turn(config: PlanConfig) -> PlanConfig:
        value = getattr(config, field)
        return structs.replace(config, **{field: type(value)(value * factor)})

    return turn


_LEVERS: Mapping[str, Callable[[PlanConfig], PlanConfig]] = {
    "twice the trainer cores": _times(2, "trainer_cores"),
    "twice the link up": _times(2, "up_bytes_per_s"),
    "twice the link down": _times(2, "down_bytes_per_s"),
    "twice the streams": _times(2, "streams"),
    "half the latency": _times(0.5, "latency_s"),
    "twice the cores per engine host": _times(2, "engine_cores"),
    "twice the bandwidth to each device": _times(2, "device_bytes_per_s"),
    "stopping in half the time": _times(0.5, "stop_s"),
    "a stream in fp8_block/1, for engines that serve fp8": lambda config: structs.replace(config, format="fp8_block/1"),
}


_MAY_BE_ZERO = {
    *("expert_share", "tile_bytes", "encode_gb_s", "decode_gb_s"),
    *("up_bytes_per_s", "down_bytes_per_s", "latency_s", "stop_s"),
    *("moe_layers", "experts", "top_k", "step_tokens", "routes_up_bytes_per_s"),
}


def _completed(config: PlanConfig, shape: ModelShape | None) -> PlanConfig:
    """With the model's own numbers where none are given. Refused when one makes no sense."""
    config = structs.replace(
        config,
        params=config.params or (shape.params if shape else 0),
        expert_share=(shape.expert_share if shape else 0.0) if config.expert_share is None else config.expert_share,
        moe_layers=config.moe_layers or (shape.moe_layers if shape else 0),
        experts=config.experts or (shape.expert_count if shape else 0),
        top_k=config.top_k or (shape.top_k if shape else 0),
    )
    if not config.params:
        raise Refused("params is 0: say how many weights the model has, or give the model")
    if config.format not in GRIDS:
        raise Refused(f"format is {config.format!r}; want one of {', '.join(GRIDS)}")
    for field in structs.fields(PlanConfig):
        value = getattr(config, field.name)
        if type(value) in (int, float) and (value < 0 or (value == 0 and field.name not in _MAY_BE_ZERO)):
            raise Refused(f"{field.name} is {value}; want a number > 0")
    _check_routes(config)
    for name in ("expert_share", "expert_use"):
        if getattr(config, name) > 1:
            raise Refused(f"{name} is {getattr(config, name)}; want a share, at most 1")
    return config


def _check_routes(config: PlanConfig) -> None:
    """A model folder may leave out how many experts a token uses: then recorded experts are planned for only on request."""
    said = f"moe_layers is {config.moe_layers}, experts {config.experts}, top_k {config.top_k}"
    if config.top_k and not (config.moe_layers and config.top_k <= config.experts):
        raise Refused(f"{said}; want all three, and no more chosen than there are")
    if config.step_tokens and not (config.moe_layers and config.top_k):
        raise Refused(f"step_tokens is for recorded experts, but {said}: say all three, or give a model that has them")


def _bytes_per_param(name: str) -> float:
    return QUANTISERS[name].bytes_per_param if name in QUANTISERS else 2.0


def _change(config: PlanConfig, shape: ModelShape | None) -> Change:
    grid = GRIDS[config.format]
    dense = shape.dense if shape else typical(config.median_w)
    experts = shape.experts if shape else dense
    rare = config.mean_u * rare_use(config.expert_use)
    return merged(
        predict(dense, grid, config.lr, config.mean_u, cold=config.cold),
        config.expert_share or 0.0,
        predict(experts, grid, config.lr, rare, cold=config.cold),
    )


def _rate(curve: tuple[tuple[float, float], ...], density: float) -> float:
    """Between measured points along straight lines of logarithms; beyond them, the nearest one's."""
    at, rates = zip(*curve, strict=True)
    return float(np.exp(np.interp(log(max(density, 1e-9)), np.log(at), np.log(rates))))


def _transfer(name: str, nbytes: float, link: float, config: PlanConfig) -> Stage:
    """Objects of equal size, as many at a time as there are streams; the manifest is one request more."""
    fewest = ceil(nbytes / config.object_bytes)
    objects = max(fewest, min(config.streams, int(nbytes // config.smallest_object_bytes)), 1)
    rounds = ceil(objects / config.streams)
    limits = {
        f"{_streams(min(objects, config.streams))} of {config.stream_bytes_per_s / 1e6:g} MB/s": (
            rounds * nbytes / objects / config.stream_bytes_per_s
        ),
        f"the link's {link / 1e9:g} GB/s": nbytes / link if link else 0.0,
    }
    slowest = max(limits, key=lambda limit: limits[limit])
    waiting = (rounds + 1) * config.latency_s
    limit = slowest if limits[slowest] >= waiting else f"{rounds + 1} times {config.latency_s:g} s of latency"
    return Stage(name, waiting + limits[slowest], limit)


def _streams(count: int) -> str:
    return "one stream" if count == 1 else f"{count} streams"


def _pause(scatter_bytes: float, changes: float, config: PlanConfig) -> Stage:
    limits = {
        "generation to stop": config.stop_s,
        f"{config.device_bytes_per_s / 1e9:g} GB/s to each device": scatter_bytes / config.device_bytes_per_s,
        "writes in device memory": changes * SECTOR_BYTES / config.device_memory_bytes_per_s,
    }
    return Stage("pause", sum(limits.values()), max(limits, key=lambda limit: limits[limit]))
