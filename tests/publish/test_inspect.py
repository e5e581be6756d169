from twinmill.publish.chain import rebuild
from twinmill.publish.inspect import by_group, differences, group_of
from twinmill.publish.manifest import WeightsLog
from twinmill.store.blobs import Blobs

from .toys import SHAPES, Trainer


def test_what_changed_is_counted_by_tensor_and_by_group(local: Blobs) -> None:
    trainer = Trainer(local)
    trainer.publish()
    version = trainer.publish()
    log = WeightsLog(local)
    before, after = rebuild(log, 0), rebuild(log, 1)
    found = differences(before, after)
    assert found["model.norm.weight"] == (1, 16)
    assert found["model.layers.0.mlp.experts.1.up_proj.weight"] == (0, 512)
    assert sum(changed for changed, _ in found.values()) <= version.changed, "a 64-bit element is two in its tile"
    groups = by_group(found)
    assert list(groups) == ["experts", "embedding", "norms", "other"]
    assert groups["experts"] == (found["model.layers.0.mlp.experts.0.up_proj.weight"][0], 1024)
    assert differences(None, after) == {name: (max(1, array.size),) * 2 for name, array in after.tensors.items()}
    assert set(found) == set(SHAPES)


def test_groups() -> None:
    names = {
        "model.layers.3.self_attn.q_proj.weight": "attention",
        "model.layers.3.self_attn.q_norm.weight": "norms",
        "model.layers.3.mlp.experts.7.down_proj.weight": "experts",
        "model.layers.3.mlp.gate.weight": "mlp",
        "model.layers.3.input_layernorm.weight": "norms",
        "lm_head.weight": "embedding",
        "anything": "other",
    }
    assert {name: group_of(name) for name in names} == names
