"""How `models/nano/` was made: a 3M-parameter Qwen3-MoE trained from nothing on two CPU cores.

    python recipes/nano_base.py OUT --cycles 52,24      (resumes from OUT/state.safetensors when it is there)
    python recipes/nano_mistakes.py OUT                 (what this base gets wrong; then go on with one cycle more)

--cycles: minutes of each cosine of the learning rate; the n-th starts at an n-th of the peak.

What a model of this size lacks is copying from its context, so most of what it reads makes it copy: repair transcripts of
the training families of `tinyrepo` (never the held-out ones), drills that ask for one line of a listing of real code, and
plain code: generated functions and the standard library of the interpreter. Loss on prompts counts 0.3, on answers 1.

A model of this size spends most of its training discovering how to copy, so it is not left to chance: `copying_heads`
sets up attention to the token before and a match on it (an induction circuit, 2209.11895) with ordinary weights of an
ordinary Qwen3-MoE, and the first steps are on repeated random ids, which tune it. Everything is trained afterwards.
The curve is written to OUT/curve.jsonl: held-out exact match = share of tasks whose first right edit the model would
produce token for token when decoding greedily.
"""

import argparse
import json
import math
import random
import sysconfig
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from twinmill.data.render.nano import BOS, BOT, END, SPECIALS, USER, NanoRenderer
from twinmill.data.tasks.tinyrepo import TinyRepo, faults, functions, numbered
from twinmill.data.tasks.tinyrepo.expert import Style, plan
from twinmill.env.harness.tools import SPECS
from twinmill.model import hf
from twinmill.model.config import from_hf
from twinmill.model.memory import keep_freed_memory
from twinmill.records.tasks import Message, ToolCall

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 1280,
    "hidden_size": 192, "intermediate_size": 384, "moe_intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
    "norm_topk_prob": True, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 2048,
    "tie_word_embeddings": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu",
    "attention_bias": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 6, "pad_token_id": 0,
}  # fmt: skip
TOKENS_PER_STEP, POOL = 4096, 6
OWN_MISTAKES = 0.4
"""share of sequences that recover from the model's own mistakes, once they are known"""
PEAK_LR, FLOOR_LR, WARMUP = 2.5e-3, 1e-4, 40
PROMPT_WEIGHT, WRONG_WEIGHT, WRONG_AGAIN_WEIGHT = 0.3, 0.05, 0.2
REPEATS_FIRST = 3000
"""sequences of repeated random ids that come before anything else"""
LEVEL = TinyRepo(0)
VISIBLE = ("typo", "colon", "bracket", "key_word", "returned")
"""faults that show in the line itself or beside it"""

Sequence_ = tuple[list[int], list[float]]
"""token ids and the loss weight of each"""


def stdlib_texts() -> list[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = (
        sorted(p for p in root.glob("*.py"))
        + sorted((root / "json").glob("*.py"))
        + sorted((root / "asyncio").glob("*.py"))
    )
    return [p.read_text(encoding="utf-8", errors="replace") for p in files]


def transcript_text(seed: int) -> str:
    task = LEVEL.load(LEVEL.ids("train")[seed])
    said = "".join(
        "\n" + str(a)
        for m, _ in plan(LEVEL.broken(task.id), Style(tests=0.5), random.Random(seed))
        for a in m.tool_calls[0].arguments.values()
    )
    return task.messages[0].content + said


def make_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE; words, runs of indentation, one or two digits and single operators are the units."""
    tokenizer = Tokenizer(models.BPE())
    pattern = r"\n| {8}| {4}| ?[A-Za-z_]+|[0-9]{1,2}| ?(?:==|!=|<=|>=|\+=|-=|\*=|//|[^\sA-Za-z0-9_])|\s"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Stream:
    """Endless training sequences, a pure function of the seed and of how many were drawn."""

    def __init__(self, render: NanoRenderer, stdlib: list[str], mistakes: list[dict]):
        """mistakes: {"task": id, "mistakes": [[line index, text], ...]} as recipes/nano_mistakes.py writes them"""
        self.render, self.stdlib = render, [text.split("\n") for text in stdlib]
        self.tools = [SPECS[name] for name in SPECS]
        self.mistakes = [m for m in mistakes if "/train/" in m["task"]]

    def draw(self, index: int) -> Sequence_:
        rng = random.Random(f"nano/{index}")
        if index <= REPEATS_FIRST:
            return self.repeats(rng)
        if self.mistakes and rng.random() < OWN_MISTAKES:
            return self.recovery(rng)
        kinds = (self.repair, self.wild, self.drill, self.repeats, self.function, self.library)
        return rng.choices(kinds, (0.60, 0.22, 0.04, 0.02, 0.04, 0.08))[0](rng)

    def recovery(self, rng: random.Random) -> Sequence_:
        """The model's own failed guesses, which are not learned, and what would have been right, which is.

        Some are followed by edits that change nothing: a model that has lost its way goes round in circles of them.
        """
        found = rng.choice(self.mistakes)
        own = [(at, text) for at, text in found["mistakes"][: rng.randint(1, len(found["mistakes"]))]]
        repo = LEVEL.broken(found["task"])
        now = repo.bad[repo.path].rstrip("\n").split("\n")
        for at, text in own:
            now[at] = text
        for _ in range(rng.choice((0, 0, 1, 2, 4))):
            at = rng.choice([own[-1][0], rng.randrange(len(now))])
            own.append((at, now[at]))
        turns = plan(repo, Style(wrong_guess=0.2, tests=0.95), rng, mistakes=own)
        return self.transcript(found["task"], turns, own=len(own))

    def repair(self, rng: random.Random) -> Sequence_:
        task_id = LEVEL.ids("train")[rng.randrange(1_000_000)]
        style = Style(wrong_guess=rng.choice((0.0, 0.3, 0.7)), tests=rng.choice((0.2, 0.9, 0.95)))
        return self.transcript(task_id, plan(LEVEL.broken(task_id), style, rng))

    def transcript(self, task_id: str, turns: list, own: int = 0) -> Sequence_:
        """Token ids and weights of an episode whose first `own` edits are the model's, which are not learned.

        Wrong guesses of the expert stay in the context, to be recovered from, and are hardly learned; after a first one
        a bit more, for each is another than those before: what failed is not to be tried again.
        """
        repo = LEVEL.broken(task_id)
        good = repo.good[repo.path].split("\n")
        ids = self.render.open(LEVEL.load(task_id).messages, self.tools)
        weights = [PROMPT_WEIGHT] * len(ids)
        edits = guesses = 0
        for message, observation in turns:
            said = self.render.assistant(message, self.tools)
            edit = message.tool_calls[0].arguments
            wrong = "line" in edit and edit["text"] != good[edit["line"] - 1]
            edits += "line" in edit
            weight = (WRONG_AGAIN_WEIGHT if guesses else WRONG_WEIGHT) if wrong else 1.0
            ids += said
            weights += [0.0 if "line" in edit and edits <= own else weight] * len(said)
            guesses += wrong
            if observation is not None:
                seen = self.render.observe(said, [observation])
                ids += seen
                weights += [PROMPT_WEIGHT] * len(seen)
        return ids, weights

    def wild(self, rng: random.Random) -> Sequence_:
        """A piece of the standard library with a fault that shows without knowing what the code is for."""
        while True:
            lines = rng.choice(self.stdlib)
            start = rng.randrange(len(lines))
            piece = textwrap.dedent("\n".join(lines[start : start + rng.randint(4, 10)])).split("\n")
            family = rng.choice(VISIBLE)
            at = rng.randrange(len(piece))
            if len(piece) < 4 or max(map(len, piece)) > 64 or not piece[at].strip():
                continue
            broken = faults.FAULTS[family](piece, at, rng)
            if broken is None or broken == piece[at]:
                continue
            message = rng.choice(
                (f"SyntaxError: invalid syntax line {at + 1}", f"NameError line {at + 1}", "It fails.")
            )
            view = numbered("\n".join([*piece[:at], broken, *piece[at + 1 :]]))
            ids = [BOS, USER, *self.render.text_ids(f"Fix main.py. {message}\n{view}"), END, BOT]
            edit = ToolCall(name="replace", arguments={"path": "main.py", "line": at + 1, "text": piece[at]})
            said = self.render.assistant(Message(role="assistant", content="", tool_calls=(edit,)), self.tools)
            return ids + said, [PROMPT_WEIGHT] * len(ids) + [1.0] * len(said)

    def _snippet(self, rng: random.Random) -> list[str]:
        if rng.random() < 0.4:
            return rng.choice(functions.TRAIN)(rng).source.rstrip("\n").split("\n")
        lines = rng.choice(self.stdlib)
        at = rng.randrange(len(lines))
        return [line[:60] for line in lines[at : at + rng.randint(4, 9)]] or ["pass"]

    def drill(self, rng: random.Random) -> Sequence_:
        lines = self._snippet(rng)
        pick = rng.randrange(len(lines))
        ids = [
            BOS,
            USER,
            *self.render.text_ids(f"Show line {pick + 1}.\n" + numbered("\n".join(lines))),
            END,
            BOT,
        ]
        said = [*self.render.text_ids(lines[pick]), END]
        return ids + said, [PROMPT_WEIGHT] * len(ids) + [1.0] * len(said)

    def repeats(self, rng: random.Random) -> Sequence_:
        """Random ids, again and again, with random ids between: only what can be copied is to be learned."""

        def ids(count: int) -> list[int]:
            return [rng.randrange(len(SPECIALS), self.render.vocab_size) for _ in range(count)]

        piece = ids(rng.randint(6, 40))
        found, weights = [BOS, *ids(rng.randint(0, 20)), *piece], []
        weights = [0.0] * len(found)
        for _ in range(rng.randint(1, 2)):
            gap = ids(rng.randint(0, 6))
            found += gap + piece
            weights += [0.0] * (len(gap) + 1) + [1.0] * (len(piece) - 1)
        return found, weights

    def function(self, rng: random.Random) -> Sequence_:
        ids = [
            BOS,
            *self.render.text_ids("\n\n".join(rng.choice(functions.TRAIN)(rng).source for _ in range(2))),
            END,
        ]
        return ids, [PROMPT_WEIGHT] * len(ids)

    def library(self, rng: random.Random) -> Sequence_:
        lines = rng.choice(self.stdlib)
        at = rng.randrange(len(lines))
        ids = [BOS, *self.render.text_ids("\n".join(lines[at : at + 20]))][:200]
        return ids, [PROMPT_WEIGHT] * len(ids)

    def pool(self, start: int) -> tuple[list[list[Sequence_]], int]:
        """POOL batches of about TOKENS_PER_STEP tokens, each of similar lengths (little padding), and the next index."""
        found: list[Sequence_] = []
        while sum(len(ids) for ids, _ in found) < POOL * TOKENS_PER_STEP:
            sequence = self.draw(start)
            start += 1
            if 2 <= len(sequence[0]) <= 768:
                found.append(sequence)
        batches: list[list[Sequence_]] = [[]]
        for sequence in sorted(found, key=lambda s: len(s[0])):
            if sum(len(ids) for ids, _ in batches[-1]) >= TOKENS_PER_STEP:
                batches.append([])
            batches[-1].append(sequence)
        random.Random(f"nano/order/{start}").shuffle(batches)
        return batches, start


def copying_heads(decoder) -> None:
    """Layer 0, heads 0 and 1: attend to the token before, and to the one before that, and write what they see into
    channels of their own. Layer 1, heads 0 and 3: attend where the channel of the token before holds the present token,
    and vote for the token there. Positions enter through RoPE's fast pairs, identities through its slow ones.
    """
    draw = torch.Generator().manual_seed(7)
    width, size = CONFIG["hidden_size"], CONFIG["head_dim"]
    heads, keys = CONFIG["num_attention_heads"] * size, CONFIG["num_key_value_heads"] * size
    basis = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64))[0].float()
    always, before, earlier, rest = basis[:, 0], basis[:, 1:33], basis[:, 33:65], basis[:, 65:]
    identity, said_a, said_b = rest[:, :32], rest[:, 32:64], rest[:, 64:96]
    pairs = size // 2
    theta = [CONFIG["rope_theta"] ** (-i / pairs) for i in range(pairs)]
    fast = [0, 1, 2, pairs, pairs + 1, pairs + 2]
    slow = [i for i in range(size) if i % pairs >= 6]

    embed = decoder.embed.data
    embed.copy_(embed @ rest @ rest.T * math.sqrt(width / rest.shape[1]) + 0.12 * always)

    first, second = decoder.blocks[0], decoder.blocks[1]
    for head, distance in ((0, 1), (1, 2)):
        query = torch.zeros(size)
        for i in range(3):
            query[i], query[i + pairs] = math.cos(distance * theta[i]), -math.sin(distance * theta[i])
        first.qkv.data[head * size : (head + 1) * size] = torch.outer(query, always)
    key = torch.zeros(size)
    key[:3] = 1
    first.qkv.data[heads : heads + size] = torch.outer(key, always)
    first.qkv.data[heads + keys : heads + keys + size] = identity.T
    first.out.data[:, :size] = 0.2 * before
    first.out.data[:, size : 2 * size] = 0.2 * earlier

    for group, head, said in ((0, 0, said_a), (1, 3, said_b)):
        match = torch.zeros(2, size, width)
        match[0, slow], match[1, slow] = identity.T[: len(slow)], before.T[: len(slow)]
        second.qkv.data[head * size : (head + 1) * size] = match[0]
        second.qkv.data[heads + group * size : heads + (group + 1) * size] = match[1]
        second.qkv.data[heads + keys + group * size : heads + keys + (group + 1) * size] = said.T
        second.out.data[:, head * size : (head + 1) * size] = 0.2 * said
    for block, dims in ((first, fast), (second, slow)):
        block.q_norm.data[dims] = 2.1
        block.k_norm.data[dims] = 2.1
    decoder.norm.data.fill_(2.0)


def logprobs(decoder, sequences: list[Sequence_]):
    """Log-probability of every next token, its weight, and the auxiliary loss, over packed sequences."""
    ids = torch.tensor([t for s, _ in sequences for t in s[:-1]])
    targets = torch.tensor([t for s, _ in sequences for t in s[1:]])
    weights = torch.tensor([w for _, ws in sequences for w in ws[1:]])
    lens = [len(s) - 1 for s, _ in sequences]
    positions = torch.cat([torch.arange(n) for n in lens])
    out = decoder(ids, positions, lens)
    return decoder.logprobs(out.hidden, targets), weights, out, targets, lens


Asked = tuple[str, list]
"""task id, and the turns before the edit that is asked for, with that edit as the last turn"""


def first_edits(split: str, count: int = 128) -> list[Asked]:
    """Tasks, and the first right edit of each."""
    ids = LEVEL.ids(split)[:count]
    return [(i, plan(LEVEL.broken(i), Style(wrong_guess=0.0, tests=0.0), random.Random(0))[:1]) for i in ids]


def recoveries(mistakes: list[dict], count: int = 128) -> list[Asked]:
    """Held-out tasks that the model once got wrong, and the right edit after the failed test."""
    found = []
    for seen in mistakes:
        if "/heldout/" in seen["task"]:
            own = [(at, text) for at, text in seen["mistakes"][:1]]
            turns = plan(LEVEL.broken(seen["task"]), Style(wrong_guess=0.0, tests=0.0), random.Random(0), mistakes=own)
            found.append((seen["task"], turns[:-1]))  # the last one is `finish`
    return found[:count]


@torch.no_grad()
def exact_match(decoder, stream: Stream, asked: list[Asked]) -> tuple[float, float]:
    """(share whose last turn is the greedy one, token for token; mean log-probability of that turn)"""
    hits, total = 0, 0.0
    for at in range(0, len(asked), 32):
        sequences, sizes = [], []
        for task_id, turns in asked[at : at + 32]:
            *before, (last, _) = turns
            ids, weights = stream.transcript(task_id, [*before, (last, None)])
            sizes.append(len(stream.render.assistant(last, stream.tools)))
            sequences.append((ids, weights))
        lp, _, out, targets, lens = logprobs(decoder, sequences)
        right = decoder.logits(out.hidden).argmax(-1) == targets
        end = 0
        for size, n in zip(sizes, lens):
            end += n
            hits += bool(right[end - size : end].all())
            total += float(lp[end - size : end].sum())
    return hits / max(1, len(asked)), total / max(1, len(asked))


def learning_rate(minutes: float, cycles: list[float], step: int) -> float:
    n = 0
    while n < len(cycles) - 1 and minutes >= cycles[n]:
        minutes, n = minutes - cycles[n], n + 1
    peak, fraction = PEAK_LR / (n + 1), min(minutes / cycles[n], 1.0)
    cosine = FLOOR_LR + (peak - FLOOR_LR) * 0.5 * (1 + math.cos(math.pi * fraction))
    return cosine * min(1.0, (step + 1) / WARMUP)


def groups(decoder) -> Iterator[dict]:
    matrices = [p for p in decoder.parameters() if p.dim() >= 2]
    yield {"params": matrices, "weight_decay": 0.05}
    yield {"params": [p for p in decoder.parameters() if p.dim() < 2], "weight_decay": 0.0}


def save(folder: Path, decoder, optimizer, progress: dict) -> None:
    """Whole training state, written aside and then renamed."""
    tensors = {}
    for i, p in enumerate(p for g in optimizer.param_groups for p in g["params"]):
        tensors[f"{i}.w"] = p.detach()
        tensors |= {f"{i}.{k}": optimizer.state[p][k] for k in ("exp_avg", "exp_avg_sq")}
    aside = folder / "state.tmp"
    save_file({k: v.contiguous() for k, v in tensors.items()}, aside, metadata={"progress": json.dumps(progress)})
    aside.rename(folder / "state.safetensors")
    hf.save_folder(decoder, folder)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


def load(folder: Path, optimizer) -> dict:
    from safetensors import safe_open

    path = folder / "state.safetensors"
    tensors = load_file(path)
    for i, p in enumerate(p for g in optimizer.param_groups for p in g["params"]):
        p.data.copy_(tensors[f"{i}.w"])
        optimizer.state[p] = {
            "step": torch.tensor(0.0),
            **{k: tensors[f"{i}.{k}"] for k in ("exp_avg", "exp_avg_sq")},
        }
    with safe_open(path, "pt") as handle:
        progress = json.loads(handle.metadata()["progress"])
    for state in optimizer.state.values():
        state["step"] = torch.tensor(float(progress["step"]))
    return progress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cycles", default="90")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    cycles = [float(minutes) for minutes in args.cycles.split(",")]
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    args.out.mkdir(parents=True, exist_ok=True)
    stdlib = stdlib_texts()
    if not (args.out / "tokenizer.json").exists():
        sample = [text[at : at + 2000] for text in stdlib for at in range(0, min(len(text), 20000), 8000)]
        make_tokenizer([transcript_text(i) for i in range(6000)] + sample).save(str(args.out / "tokenizer.json"))
    known = args.out / "mistakes.jsonl"
    mistakes = [json.loads(line) for line in known.read_text().splitlines()] if known.exists() else []
    stream = Stream(NanoRenderer.from_folder(args.out), stdlib, mistakes)
    exams = {"heldout": first_edits("heldout"), "seeds": first_edits("seeds"), "recovered": recoveries(mistakes)}
    decoder = hf.init_decoder(from_hf(CONFIG), 0)
    copying_heads(decoder)
    optimizer = torch.optim.AdamW(list(groups(decoder)), lr=PEAK_LR, betas=(0.9, 0.98), fused=True)
    progress = {"step": 0, "tokens": 0, "drawn": 0, "seconds": 0.0}
    if (args.out / "state.safetensors").exists():
        progress = load(args.out, optimizer)
    batches: list[list[Sequence_]] = []
    before, started = progress["seconds"], time.monotonic()
    while progress["seconds"] < sum(cycles) * 60:
        rate = learning_rate(progress["seconds"] / 60, cycles, progress["step"])
        for group in optimizer.param_groups:
            group["lr"] = rate
        if not batches:
            batches, progress["drawn"] = stream.pool(progress["drawn"])
        sequences = batches.pop()
        lp, weights, out, *_ = logprobs(decoder, sequences)
        loss = -(lp * weights).sum() / weights.sum()
        (loss + 0.01 * out.aux_loss).backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        progress["step"] += 1
        progress["tokens"] += sum(len(ids) for ids, _ in sequences)
        progress["seconds"] = before + time.monotonic() - started
        if progress["step"] % 200 == 0:
            row = {**progress, "lr": rate, "loss": loss.item()}
            for name, asked in exams.items():
                row[f"{name}_exact"], row[f"{name}_logprob"] = exact_match(decoder, stream, asked)
            print(json.dumps(row), flush=True)
            with (args.out / "curve.jsonl").open("a") as curve:
                curve.write(json.dumps(row) + "\n")
            save(args.out, decoder, optimizer, progress)
    save(args.out, decoder, optimizer, progress)


if __name__ == "__main__":
    main()
