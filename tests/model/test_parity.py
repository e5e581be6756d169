"""Bit-equality: a token's numbers do not depend on what it was batched with. Decides for the machine at hand."""

import pytest
import torch
import torch.nn.functional as F

from twinmill.model.attention import mix, probabilities
from twinmill.model.parity import MIN_ROWS, Parity, linear, sigmoid
from twinmill.model.probe import strict_parity
from twinmill.model.segments import KEY_PAD, padded

from .sizes import NANO, TINY, sharp

torch.set_num_threads(1)
LENS = [5, 17, 64, 65, 130, 300, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def decoder():
    return sharp(NANO, parity=Parity.STRICT)


@pytest.fixture(scope="module")
def batch():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, NANO.vocab, (sum(LENS),), generator=generator)
    return ids, torch.cat([torch.arange(n) for n in LENS])


def test_padding_small_products_makes_rows_independent():
    x, weight = torch.randn(64, 192), torch.randn(96, 192)
    whole = F.linear(x, weight)
    for rows in range(1, 12):
        for start in (0, 7, 50):
            part = linear(x[start : start + rows], weight, None, Parity.BATCH)
            assert torch.equal(part, whole[start : start + rows])
    assert not all(torch.equal(F.linear(x[:n], weight), whole[:n]) for n in range(1, MIN_ROWS))


@pytest.mark.parametrize("width", [1, 8, 12, 384])
def test_a_sigmoid_does_not_depend_on_the_rows_behind_it(width):
    x = torch.randn(300, width) * 3
    whole = sigmoid(x, Parity.STRICT)
    assert all(torch.equal(sigmoid(x[i : i + 1].clone(), Parity.STRICT)[0], whole[i]) for i in range(300))
    torch.testing.assert_close(whole, x.sigmoid())


@torch.no_grad()
def test_packed_rows_equal_unpacked_ones(decoder, batch):
    ids, positions = batch
    packed = decoder(ids, positions, LENS)
    targets = ids.roll(-1)
    logprobs = decoder.logprobs(packed.hidden, targets, 0.7)
    start = 0
    for length in LENS:
        span = slice(start, start + length)
        alone = decoder(ids[span], positions[span], [length])
        assert torch.equal(alone.hidden, packed.hidden[span]), length
        assert torch.equal(alone.routes, packed.routes[span]), length
        assert torch.equal(decoder.logprobs(alone.hidden, targets[span], 0.7), logprobs[span]), length
        start += length


@torch.no_grad()
def test_a_prefix_does_not_depend_on_what_follows(decoder, batch):
    ids, _ = batch
    whole = decoder(ids[:300], torch.arange(300), [300]).hidden
    for length in (1, 2, 3, 4, 63, 64, 65, 127, 129, 200, 255, 257):
        part = decoder(ids[:length], torch.arange(length), [length]).hidden
        assert torch.equal(part, whole[:length]), length


@torch.no_grad()
def test_off_stays_within_rounding(batch):
    ids, positions = batch
    strict, off = (sharp(NANO, parity=parity) for parity in (Parity.STRICT, Parity.OFF))
    a = strict.logprobs(strict(ids, positions, LENS).hidden, ids)
    b = off.logprobs(off(ids, positions, LENS).hidden, ids)
    assert (a - b).abs().max() < 2e-5


@pytest.mark.parametrize("seen", [5, 130, 250])
def test_hidden_keys_and_other_rows_leave_no_trace(seen):
    """Of 1024 keys a row sees `seen`; how many more are given, and how many rows there are, changes no bit."""
    generator = torch.Generator().manual_seed(seen)
    q, k, v = (torch.randn(2, n, 32, generator=generator) for n in (192, 1024, 1024))

    def attend(rows: int, keys: int) -> torch.Tensor:
        hidden = torch.ones(1, 1, keys - seen, dtype=torch.bool)
        return mix(probabilities(q[:, :rows], k[:, :keys], seen, hidden), v[:, :keys])

    want = attend(192, padded(seen))
    for rows in (4, 5, 6, 7, 8, 12, 63, 64, 192):
        for keys in range(padded(seen), 1025, KEY_PAD):
            assert torch.equal(attend(rows, keys), want[:, :rows]), (rows, keys)


@torch.no_grad()
def test_a_shared_prompt_equals_segments_written_out_in_full(decoder):
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(0, NANO.vocab, (n,), generator=generator) for n in (90, 3)]
    tails = [torch.randint(0, NANO.vocab, (n,), generator=generator) for n in (40, 1, 70, 33, 5)]
    parents = [-1, 0, 0, -1, 3, 0, 3]
    parts = [prompts[0], tails[0], tails[1], prompts[1], tails[2], tails[3], tails[4]]
    begins = [0 if p < 0 else len(parts[p]) for p in parents]
    positions = torch.cat([torch.arange(b, b + len(part)) for b, part in zip(begins, parts)])
    shared = decoder(torch.cat(parts), positions, [len(part) for part in parts], parents=parents)
    for part, parent, hidden in zip(parts, parents, shared.hidden.split([len(part) for part in parts])):
        full = part if parent < 0 else torch.cat((parts[parent], part))
        want = decoder(full, torch.arange(len(full)), [len(full)]).hidden[-len(part) :]
        assert torch.equal(hidden, want)


def test_a_parent_may_not_have_a_parent(decoder):
    ids = torch.zeros(6, dtype=torch.int64)
    for parents in ([-1, 0, 1], [-1, 0], [3, -1, -1]):
        with pytest.raises(ValueError, match="parents"):
            decoder(ids, ids, [2, 2, 2], parents=parents)


@pytest.mark.parametrize("config", [NANO, TINY], ids=["nano", "tiny"])
def test_the_probe_agrees_and_sees_a_kernel_that_depends_on_the_batch(config, monkeypatch):
    assert strict_parity(config) == ""
    monkeypatch.setattr("twinmill.model.parity.MIN_ROWS", 1)
    assert "alone differ" in strict_parity(config)
