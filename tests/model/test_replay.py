"""Router replay: which experts are used, what is counted, and that gradients reach the router."""

import pytest
import torch

from twinmill.model.mixture import choose, replay, route

from .sizes import TINY, sharp

torch.set_num_threads(1)


def packed(lens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, TINY.vocab, (sum(lens),), generator=generator)
    return ids, torch.cat([torch.arange(n) for n in lens]), lens


def test_replaying_own_choice_changes_nothing():
    decoder, batch = sharp(TINY), packed([9, 30])
    with torch.no_grad():
        free = decoder(*batch)
        forced = decoder(*batch, free.routes, replay_floor=1.0)
    assert torch.equal(free.hidden, forced.hidden)
    assert (forced.replayed, forced.refused) == (39 * TINY.layers, 0)
    assert (free.replayed, free.refused) == (0, 0)


def test_a_recorded_set_gives_the_bits_of_the_choice_in_order():
    """The order in which experts are added up is in the bits, and a record does not have it."""
    decoder, batch = sharp(TINY), packed([9, 30])
    with torch.no_grad():
        free = decoder(*batch)
        for routes in (free.routes.sort(-1).values, free.routes.flip(-1)):
            assert torch.equal(decoder(*batch, routes).hidden, free.hidden)


def test_forced_experts_are_used_and_their_scores_carry_gradient():
    decoder, batch = sharp(TINY), packed([12])
    other = torch.tensor([3, 1], dtype=torch.int32).expand(12, TINY.layers, 2)
    output = decoder(*batch, other)
    assert torch.equal(output.routes.sort(-1).values, other.sort(-1).values)
    output.hidden.square().sum().backward()
    for block in decoder.blocks:
        assert block.mixture.router.grad[[1, 3]].abs().sum(-1).min() > 0
        assert block.mixture.gate_up.grad[[0, 2]].abs().max() == 0


def test_gates_are_own_scores_renormalised():
    scores = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    routing = route(scores, choose(scores, TINY, None), TINY, torch.tensor([[2, 0]], dtype=torch.int32), 0.0)
    assert routing.chosen.tolist() == [[0, 2]], "records are sets: the order is that of the scores"
    torch.testing.assert_close(routing.gates, torch.tensor([[0.5, 0.15]]) / 0.65)


@pytest.mark.parametrize(
    ("forced", "floor", "chosen", "whole", "refused"),
    [
        ([2, 3], 0.0, [2, 3], 1, 0),  # floor 0: everything recorded is kept
        ([2, 1], 0.5, [2, 1], 1, 0),  # 0.15 >= 0.5 * 0.3
        ([3, 1], 0.5, [0, 1], 0, 1),  # 0.05 < 0.15: the hole takes our best
        ([3, 0], 0.5, [1, 0], 0, 1),  # our best is there already: the hole takes our second
        ([3, 2], 1.0, [0, 1], 0, 1),  # nothing is plausible: our own choice
        ([-1, -1], 0.5, [0, 1], 0, 0),  # free
        ([-1, 2], 0.0, [0, 2], 0, 0),  # half recorded
    ],
)
def test_plausibility_filter(forced, floor, chosen, whole, refused):
    scores = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    own = scores.topk(2, -1).indices
    got = replay(scores, own, torch.tensor([forced]), floor)
    assert (got[0].tolist(), *got[1:]) == ([chosen], whole, refused)


def test_refilled_experts_are_distinct_for_any_input():
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(500, 8, generator=generator).softmax(-1)
    own = scores.topk(3, -1).indices
    forced = torch.rand(500, 8, generator=generator).topk(3, -1).indices
    forced[torch.rand(500, 3, generator=generator) < 0.3] = -1
    chosen, _, _ = replay(scores, own, forced, 0.95)
    assert (chosen >= 0).all()
    assert all(len(set(row)) == 3 for row in chosen.tolist())


def test_aux_loss_is_one_when_even():
    scores = torch.eye(4).repeat(5, 1) * 0.6 + 0.1
    assert route(scores, scores.topk(1).indices, TINY, None, 0.0).aux_loss.item() == pytest.approx(1.0)


def test_gradients_through_a_shared_prompt_are_those_of_the_segments_in_full():
    (prompt, *_), (left, *_), (right, *_) = (packed([n], n) for n in (30, 12, 9))
    grads = []
    for parts, positions, parents in (
        ((prompt, left, right), [range(30), range(30, 42), range(30, 39)], [-1, 0, 0]),
        ((prompt, left, prompt, right), [range(42), range(39)], None),
    ):
        decoder = sharp(TINY)
        lens = [len(p) for p in parts] if parents else [42, 39]
        ids, where = torch.cat(parts), torch.tensor([p for span in positions for p in span])
        output = decoder(ids, where, lens, parents=parents)
        mask = where[1:] > 30  # loss on the tails alone
        scored = decoder.logprobs(output.hidden[:-1][mask], ids[1:][mask])
        (scored * torch.arange(1.0, len(scored) + 1)).sum().backward()
        grads.append([p.grad for p in decoder.parameters()])
    for shared, full in zip(*grads):
        torch.testing.assert_close(shared, full, atol=1e-4, rtol=1e-4)
