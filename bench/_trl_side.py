"""TRL's side of `bench trl`: GRPOTrainer on the problems of one file. Run by the interpreter of TRL's own environment:

    python _trl_side.py SETTINGS.json

Settings: model, problems, out, steps, threads, dtype (fp32 or bf16), rows (of one forward and backward pass), experts (the
implementation). The last line printed is a JSON object with the seconds of every step and what was sampled.
"""

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from _single_turn import GROUP, LEARNING_RATE, NEW_TOKENS, SAMPLES_PER_STEP, read, reward

sys.path.remove(str(Path(__file__).parent))  # in this folder, trl is the benchmark

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """When each step ended; the first entry is when the training began."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.times.append(time.perf_counter())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append(time.perf_counter())


class Seen:
    """The reward function, and what it was given."""

    __name__ = "overlap"

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.lengths: list[int] = []

    def __call__(self, completion_ids: list[list[int]], right: list[list[int]], **_: Any) -> list[float]:
        rewards = [reward(sampled, wanted) for sampled, wanted in zip(completion_ids, right, strict=True)]
        self.rewards += rewards
        self.lengths += map(len, completion_ids)
        return rewards


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<|bos|>", eos_token="<|end|>", pad_token="<|pad|>"
    )


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(settings["threads"])
    folder, problems = Path(settings["model"]), read(Path(settings["problems"]))
    tokenizer = tokenizer_of(folder)
    for problem in problems:
        if tokenizer(text=problem.prompt_text)["input_ids"] != problem.prompt_ids:
            raise SystemExit(f"{problem.task_id}: TRL's tokenizer gives other ids for its prompt")
    clock, seen = Clock(), Seen()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, experts_implementation=settings["experts"]
        ),
        reward_funcs=[seen],
        args=arguments(settings),
        train_dataset=Dataset.from_list([{"prompt": p.prompt_text, "right": p.right_ids} for p in problems]),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    trainer.train()
    facts = {
        "step_s": [b - a for a, b in pairwise(clock.times)],
        "samples": len(seen.lengths),
        "tokens": sum(seen.lengths) / len(seen.lengths),
        "reward": sum(seen.rewards) / len(seen.rewards),
    }
    print(json.dumps(facts), flush=True)


def arguments(settings: dict[str, Any]) -> GRPOConfig:
    """Everything that costs time and changes no figure is off: no reference, no checkpointing, no logs, no reports."""
    rows = settings["rows"]
    return GRPOConfig(
        output_dir=settings["out"],
        use_cpu=True,
        bf16=settings["dtype"] == "bf16",
        max_steps=settings["steps"],
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=SAMPLES_PER_STEP // rows,
        num_generations=GROUP,
        max_completion_length=NEW_TOKENS,
        learning_rate=LEARNING_RATE,
        temperature=1.0,
        beta=0.0,
        scale_rewards="none",
        router_aux_loss_coef=0.0,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


if __name__ == "__main__":
    main()
