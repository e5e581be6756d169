import math

import pytest
import torch
from torch import nn

from twinmill.train.optimizer import AdamW, NotFinite, Optimizer, lr_at

torch.set_num_threads(1)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 4.0]]))
        self.vector = nn.Parameter(torch.tensor([1.0, 3.0]))


def made(**config):
    model = Two()
    config = {"clip": 0, "lr": 0.1} | config
    return model, Optimizer(model.named_parameters(), AdamW(**config))


def backward(model, scale=1.0):
    (scale * (model.matrix.sum() + 2 * model.vector.sum())).backward()


def test_first_update_by_hand():
    """Adam's first step is lr * g / (|g| + eps): lr itself, whatever the gradient."""
    model, optimizer = made()
    optimizer.zero()
    backward(model)
    applied = optimizer.step(0)
    assert applied.grad_norm == pytest.approx(math.sqrt(4 * 1 + 2 * 4))
    assert optimizer.state()["master/matrix"].tolist() == [
        pytest.approx([0.9, -2.1]),
        pytest.approx([0.4, 3.9]),
    ]
    assert optimizer.state()["master/vector"].tolist() == pytest.approx([0.9, 2.9])


def test_same_as_torch_over_many_steps():
    model, optimizer = made(weight_decay=0.1, clip=1.0, betas=(0.9, 0.95))
    plain = Two()
    torch_adam = torch.optim.AdamW(
        [{"params": [plain.matrix], "weight_decay": 0.1}, {"params": [plain.vector], "weight_decay": 0.0}],
        lr=0.1,
        betas=(0.9, 0.95),
    )
    for step in range(5):
        torch_adam.zero_grad()
        (step * (plain.matrix**2).sum() + plain.vector.sum()).backward()
        model.matrix.grad.copy_(plain.matrix.grad)  # the rounded model's own would differ
        model.vector.grad.copy_(plain.vector.grad)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        torch_adam.step()
        optimizer.step(step)
    torch.testing.assert_close(optimizer.state()["master/matrix"], plain.matrix.detach())
    torch.testing.assert_close(optimizer.state()["master/vector"], plain.vector.detach())


def test_the_model_holds_bf16_values_and_the_masters_keep_what_rounding_loses():
    model, optimizer = made(lr=1e-4)
    for step in range(30):
        optimizer.zero()
        backward(model)
        optimizer.step(step)
        assert torch.equal(model.matrix, model.matrix.bfloat16().float())
    masters = optimizer.state()["master/matrix"]
    assert torch.equal(model.matrix, masters.bfloat16().float())
    assert masters[1, 1] == pytest.approx(4 - 30e-4, abs=1e-5)
    assert model.matrix[1, 1] == 4.0, "bf16 has steps of 1/64 at 4: a single step of 1e-4 would be lost for ever"


def test_a_parameter_stored_in_fp32_is_not_rounded():
    model = Two()
    optimizer = Optimizer(model.named_parameters(), AdamW(lr=1e-4), {"vector": torch.float32})
    backward(model)
    optimizer.step(0)
    assert torch.equal(model.vector, optimizer.state()["master/vector"])
    assert model.vector[1] != 3.0


def test_clipping_bounds_the_norm_over_all_parameters():
    model, optimizer = made(clip=0.5)
    backward(model, 100)
    assert optimizer.step(0).grad_norm == pytest.approx(100 * math.sqrt(12), rel=1e-5), "reported before clipping"
    moments = optimizer.state()
    clipped = sum((moments[f"exp_avg/{n}"] / 0.1).pow(2).sum() for n in ("matrix", "vector"))
    assert float(clipped) ** 0.5 == pytest.approx(0.5, rel=1e-4)


def test_gradients_accumulate_over_microbatches():
    model, optimizer = made()
    optimizer.zero()
    backward(model)
    backward(model)
    assert model.matrix.grad.tolist() == [[2, 2], [2, 2]]
    optimizer.zero()
    assert model.matrix.grad.abs().sum() == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    model, optimizer = made()
    before = {k: v.clone() for k, v in optimizer.state().items()}
    backward(model, bad)
    with pytest.raises(NotFinite, match="step 7"):
        optimizer.step(7)
    assert all(torch.equal(v, before[k]) for k, v in optimizer.state().items())


def test_replaced_gradients_are_noticed():
    model, optimizer = made()
    model.zero_grad(set_to_none=True)
    backward(model)
    with pytest.raises(RuntimeError, match=r"matrix\.grad was replaced"):
        optimizer.step(0)


def test_state_moves_to_another_optimizer():
    model, optimizer = made()
    for step in range(3):
        optimizer.zero()
        backward(model)
        optimizer.step(step)
    state = {k: v.clone() for k, v in optimizer.state().items()}
    other_model, other = made()
    other.load(state)
    assert torch.equal(other_model.matrix, model.matrix)
    for m, o in ((model, optimizer), (other_model, other)):
        o.zero()
        backward(m)
        o.step(3)
    assert all(torch.equal(a, b) for a, b in zip(optimizer.state().values(), other.state().values(), strict=True))


def test_state_of_another_model_is_refused():
    _, optimizer = made()
    state = optimizer.state()
    with pytest.raises(ValueError, match="first is exp_avg/matrix"):
        optimizer.load({k: v for k, v in state.items() if k != "exp_avg/matrix"})
    with pytest.raises(ValueError, match="first is master/vector"):
        optimizer.load(state | {"master/vector": torch.zeros(3)})


def test_schedules_by_hand():
    warm = AdamW(lr=1.0, warmup=4)
    assert [lr_at(warm, s) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    cosine = AdamW(lr=2.0, warmup=2, schedule="cosine", horizon=12, floor=0.1)
    assert lr_at(cosine, 1) == 2.0
    assert lr_at(cosine, 7) == pytest.approx(2 * (0.1 + 0.9 * 0.5))
    assert lr_at(cosine, 12) == pytest.approx(0.2)
    assert lr_at(cosine, 99) == pytest.approx(0.2)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="constant, cosine"):
        AdamW(schedule="linear")
    with pytest.raises(ValueError, match="horizon is 0"):
        AdamW(schedule="cosine")
