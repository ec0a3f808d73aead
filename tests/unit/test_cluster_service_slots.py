"""Slots of services: those that ask for devices or processors have places of their own."""

import pytest

from agentrl.cluster.slots import (
    NodePlace,
    Slot,
    Supply,
    bundle_sizes,
    bundles_of,
    in_order,
    plan_slots,
)
from agentrl.config.run import RunConfig
from agentrl.envs.env import ServiceSpec
from agentrl.errors import EnvironmentSetupError
from tests.unit.slot_plans import devices_of, gpus


def test_a_service_that_asks_for_gpus_has_a_bundle_of_its_own() -> None:
    config = RunConfig(actor_num_gpus_per_node=4, colocate=True)
    slots = plan_slots(config, gpus(4, 2), {"search": 0, "judge": 2})
    assert devices_of(slots)["judge"] == (2, 1)
    assert slots[-1].processes == {"judge": "service"}
    assert "search" in slots[0].processes
    assert bundle_sizes(slots) == [4, 2]
    said = r"6 GPUs are needed .*1 engines x 1 \+ 2 of the service judge\) and the cluster has 5"
    with pytest.raises(EnvironmentSetupError, match=said.replace("1 engines", r"\d engines")):
        plan_slots(config, gpus(4, 1), {"search": 0, "judge": 2})
    with pytest.raises(EnvironmentSetupError, match="the service judge 8"):
        plan_slots(config, gpus(4, 4, 4), {"judge": 8})


def test_a_service_cannot_ask_for_less_than_no_gpu() -> None:
    with pytest.raises(ValueError, match="service judge: gpus is -1; give 0 or more"):
        ServiceSpec("judge", ["serve"], "/", gpus=-1)


def test_on_processors_a_service_has_no_devices() -> None:
    config = RunConfig(actor_num_gpus_per_node=2)
    slots = plan_slots(config, Supply("CPU", (2, 2)), {"judge": 2})
    assert "judge" in slots[0].processes


def test_a_service_that_asks_for_processors_has_a_slot_on_any_one_node() -> None:
    """Beside GPUs it has no device, or as many as it asks for too; where processors are devices it
    has those."""
    config = RunConfig(actor_num_gpus_per_node=2, rollout_num_gpus=2, rollout_num_gpus_per_engine=2)
    asked = {"search": 0, "judge": 1, "index": 0}
    slots = plan_slots(config, gpus(8, 0), asked, {"index": 16, "judge": 4})
    of_services = {slot.name: slot for slot in slots if slot.name in asked}
    told = {name: (slot.size, slot.num_cpus, slot.node) for name, slot in of_services.items()}
    assert told == {"judge": (1, 4, None), "index": (0, 16, None)}
    assert "search" in slots[0].processes
    assert bundles_of(slots, "GPU") == [{"GPU": 2}, {"GPU": 2}, {"GPU": 1, "CPU": 4}, {"CPU": 16}]
    on_processors = plan_slots(config, Supply("CPU", (8, 8)), asked, {"index": 3})
    assert devices_of(on_processors)["index"] == (3, 2)
    assert bundles_of(on_processors, "CPU") == [{"CPU": 2}, {"CPU": 2}, {"CPU": 3}]
    (one,) = plan_slots(config, Supply(), asked, {"index": 3})
    assert "index" in one.processes


def test_services_that_ask_for_other_numbers_of_processors_do_not_change_places() -> None:
    slots = [
        Slot("small", 0, {"small": "service"}, bundle=0, node=None, num_cpus=2),
        Slot("large", 0, {"large": "service"}, bundle=1, node=None, num_cpus=16),
    ]
    assert in_order(slots, [NodePlace("10.0.0.2"), NodePlace("10.0.0.1")]) == [0, 1]


def test_a_service_cannot_ask_for_less_than_no_processor() -> None:
    with pytest.raises(ValueError, match="service judge: cpus is -1; give 0 or more"):
        ServiceSpec("judge", ["serve"], "/", cpus=-1)
