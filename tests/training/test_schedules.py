"""Learning-rate schedules: warm-up, shape, units, state."""

import json
import math

import pytest
import torch

from onnxqat.errors import UsageError
from onnxqat.training import schedules
from onnxqat.training.optim.schedule import set_rates


def factors(name: str, steps: int = 100, warmup: int = 10, **options: object) -> list[float]:
    made = schedules.make(name, total_steps=steps, warmup_steps=warmup, steps_per_epoch=10, options=options)
    assert made.total_steps == steps
    return [made.factor(step) for step in range(steps)]


def test_every_schedule_warms_up_and_starts_in_full() -> None:
    assert set(schedules.names()) >= {"cosine", "linear", "constant", "step", "multistep", "plateau"}
    for name in schedules.names():
        found = factors(name)
        assert found[:11] == pytest.approx([(i + 1) / 11 for i in range(11)]), name
        assert found[10:] == sorted(found[10:], reverse=True), name


def test_cosine() -> None:
    found = factors("cosine")
    assert found[55] == pytest.approx(0.5)
    assert 0 < found[99] < 0.01
    assert factors("cosine", final_factor=0.2)[99] == pytest.approx(0.2 + 0.8 * found[99])


def test_linear_and_constant() -> None:
    assert factors("linear", warmup=0)[25] == pytest.approx(0.75)
    assert factors("linear", warmup=0, final_factor=0.5)[99] == pytest.approx(0.505)
    assert set(factors("constant", warmup=0)) == {1.0}


def test_step_and_multistep_are_those_of_torch() -> None:
    """With epochs of one step, the same numbers as torch's schedulers."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    by_name = {
        "step": (torch.optim.lr_scheduler.StepLR(optimizer, 30), {"step_size": 3}),
        "multistep": (
            torch.optim.lr_scheduler.MultiStepLR(optimizer, [40, 70], 0.5),
            {"milestones": [4, 7], "gamma": 0.5},
        ),
    }
    for name, (scheduler, options) in by_name.items():
        optimizer.param_groups[0]["lr"] = 1.0
        wanted = []
        for _ in range(100):
            wanted.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        assert factors(name, warmup=0, **options) == pytest.approx(wanted), name
    assert factors("step", steps=90, warmup=0) == pytest.approx(factors("step", steps=90, warmup=0, step_size=3))


def test_plateau_waits_for_the_score_and_resumes() -> None:
    def make() -> schedules.Schedule:
        return schedules.make("plateau", total_steps=100, options={"patience": 1, "gamma": 0.5, "final_factor": 0.2})

    whole, halves = make(), [make(), make()]
    # Scores are minus a loss: a best of -1 is beaten by -0.5 and not by -0.99999.
    scores = [-1.0, -0.99999, -0.99999, -0.5, -0.6, -0.7, -0.8, -0.9, -0.9, -0.9]
    found = []
    for index, score in enumerate(scores):
        whole.observe(score)  # type: ignore[attr-defined]
        if index == 5:
            halves[1].load_state_dict(json.loads(json.dumps(halves[0].state_dict())))  # type: ignore[attr-defined]
        halves[index >= 5].observe(score)  # type: ignore[attr-defined]
        found.append(whole.factor(50))
        assert halves[index >= 5].factor(50) == found[-1]
    assert found == [1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2, 0.2]


def test_a_schedule_of_your_own() -> None:
    made = schedules.make(lambda step, steps: math.sqrt(1 - step / steps), total_steps=100)
    assert [made.factor(0), made.factor(75)] == [1.0, 0.5]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.4)
    for _ in range(2):
        assert set_rates(optimizer, made.factor(75)) == {"0": pytest.approx(0.2)}


def test_settings_tell_runs_apart() -> None:
    one = schedules.make("multistep", total_steps=9, steps_per_epoch=3, options={"milestones": (1, 2)})
    assert schedules.settings(one) == {
        "schedule": "multistep",
        "total_steps": 9,
        "warmup_steps": 0,
        "steps_per_epoch": 3,
        "milestones": [1, 2],
        "gamma": 0.1,
    }


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cosin", {}, "cosin"),
        ("cosine", {"gamma": 0.1}, "gamma"),
        ("multistep", {"milestones": [0]}, "milestones"),
        ("step", {"step_size": 0}, "step_size"),
        ("step", {"step_size": 3}, "length of the data"),
    ],
)
def test_what_is_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        schedules.make(name, total_steps=100, options=options)
    with pytest.raises(UsageError):
        schedules.make("cosine", total_steps=100, warmup_steps=-1)
    with pytest.raises(UsageError):
        schedules.make(lambda step, steps: 1.0, total_steps=100, options={"gamma": 0.1})
