"""Many machines at once: what they cost on a host, as measured; a burst that is planned, and what is foreseen of it."""

from .base import Record


class MachineCosts(Record):
    """Measured by `twinmill machines calibrate` on one host, used by env.machine.pool.simulator.

    `make_s`, `run_s`, `end_s` are quantiles at equal distances (first = least, last = most) of what one machine took that had
    the host for itself: to start, to answer a first command, to end. `cycles_per_s` is the rate of all three with many at
    once; what of a cycle's time this does not explain is waiting that costs no processor.

    Example: MachineCosts(host="EPYC", cores=2, make_s=(0.004, 0.005, 0.02), run_s=(0.002, 0.002, 0.01),
    end_s=(0.001, 0.002, 0.005), cycles_per_s=480.0, work_s=0.02, work_frac=1.1, idle_bytes=430_000, samples=300)
    """

    host: str
    """the processor, in words"""
    cores: int
    make_s: tuple[float, ...]
    run_s: tuple[float, ...]
    end_s: tuple[float, ...]
    cycles_per_s: float
    work_s: float
    """of the computing command that was used, beside what any command takes, alone"""
    work_frac: float
    """processor seconds that a second of work, as timed alone, costs with many at once"""
    idle_bytes: int
    """memory of a machine that has run a command"""
    samples: int
    """machines behind each list of quantiles"""


class BurstPlan(Record):
    """A burst: `machines` of them, asked for at once or within `arrive_s`, in groups that share a template.

    Example: BurstPlan(machines=100_000, group=8, nodes=120, cores=128, memory_bytes=256 * 2**30, work_s=2.0, hold_s=60.0)
    """

    machines: int
    group: int = 8
    """attempts of one task; they go to one node"""
    images: int = 1
    """different templates that the groups fork from"""
    image_bytes: int = 0
    """fetched by a node before its first fork of it; 0 = it is there"""
    arrive_s: float = 0.0
    """evenly over this time; 0 = all at once"""
    work_s: float = 0.0
    """processor seconds of one machine's commands, as timed alone"""
    hold_s: float = 0.0
    """mean seconds that a machine waits for its model, exponentially distributed"""
    grown_bytes: int = 0
    """memory that a machine's work adds to an idle one"""
    nodes: int = 1
    cores: int = 2
    memory_bytes: int = 8 * 2**30
    """of one node"""
    link_bytes_s: float = 1.25e9
    """of one node: 10 Gbit/s"""


class BurstOutcome(Record):
    """What a simulated or a real burst came to. Times are from the request; p50 and p99 are of the first output."""

    makespan_s: float
    """until the last machine has ended"""
    p50_s: float
    p99_s: float
    most_alive: int
    ended: int
    """leases that ended, each exactly once"""
    lost: int = 0
    """asks that were given up after their last try"""
    tries: int = 0
    """creates, retries included"""
    orphans: int = 0
    """machines that nobody holds when everything has ended"""
    bottleneck: str = ""
    """what a larger share of would make it faster: processors, memory, machines, link, waiting"""
