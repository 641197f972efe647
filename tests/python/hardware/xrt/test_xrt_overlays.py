"""Prompts and batches on the device xrt: streams load the programs that the build made, those of
the device that they run on. The double's cores run nothing else: stand-ins, another overlay,
another build, a wrong word are errors there. A build without programs, or with damaged ones, is
refused with the command that repairs it."""

from __future__ import annotations

import functools
import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xrt_devices
from gemma3_files import Shape, write_model
from xrt_cases import backend

import npu
from npu import _npu
from npu.errors import DeviceError, FirmwareError, MissingBuildError
from npu.hardware.selftest import checks, measure
from npu.hardware.selftest import run as selftest
from npu.hardware.xrt.backend import XrtBackend
from npu.models.gemma3.model import Model
from npu.models.sources import open_source
from npu.ops.registry import operation

PROGRAMS = ("products", "norm", "geglu", "rotation", "attention")
_names = itertools.count()


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(
        layers=2, width=64, ffn_width=96, heads=4, kv_heads=2, head_dim=32, window=6, context=96
    )
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", shape)


def prompt(path: Path, model: Model | None = None) -> bytes:
    """Logits of a prompt's tokens, then of two sequences' next ones."""
    model = model or Model(open_source(path))
    assert model.batches_on_array
    caches = [model.new_cache(), model.new_cache()]
    tokens = [int(token) for token in np.random.default_rng(3).integers(0, 200, 20)]
    found = [model.forward(tokens, caches[0], all_logits=True)]
    model.extend(tokens[:7], caches[1])
    found.append(model.decode_batch([5, [6, 7]], caches))
    return b"".join(one.tobytes() for one in found)


def registered(made: Any) -> str:
    """The name of a device that `made` is the backend of."""
    name = f"double:overlays-{next(_names)}"
    npu.register_device(name, lambda: made)
    return name


def on(made: Any) -> Any:
    return npu.device(registered(made))


@functools.cache
def configuration(generation: str = "npu2") -> Any:
    return _npu.device.Configuration.parse(operation("prefill").configuration(generation))


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_prompts_are_those_of_the_emulated_npu(generation, model_file, machine):
    machine.reset(seed=3)  # with reloads
    with npu.device(f"emu:{generation}", designs="array"):
        expected = prompt(model_file)
    with on(backend(generation)):
        assert prompt(model_file) == expected
    assert not machine.errors


def test_devices_send_their_own_builds(model_file, machine):
    """One model, one configuration, two devices that were built apart."""
    with npu.device("emu:npu2", designs="array"):
        expected = prompt(model_file)
    builds = [functools.partial(xrt_devices.find, build=number) for number in (0, 1)]
    first, second = (build(configuration()).overlay("norm") for build in builds)
    assert first != second and len(first) == len(second)
    names = [registered(backend(find=build)) for build in builds]
    with npu.device(names[0]):
        model = Model(open_source(model_file))
    for name in names * 2:
        with npu.device(name):
            assert prompt(model_file, model) == expected


class Lying(XrtBackend):
    """Its images are what `lie` makes of them."""

    lie: Any

    def overlay_image(self, configuration: Any, overlay: str) -> Any:
        return self.lie(super().overlay_image, configuration, overlay)


def _bit(image: Any, configuration: Any, name: str) -> bytes:
    found = bytearray(image(configuration, name))
    found[-1] ^= 1
    return bytes(found)


def _other(image: Any, configuration: Any, name: str) -> bytes:
    """The programs of norm and products change places."""
    size = len(image(configuration, name))
    other = {"norm": "products", "products": "norm"}.get(name, name)
    return image(configuration, other)[:size].ljust(size, b"\0")


LIES = {
    "stand-ins": lambda image, configuration, name: None,
    "another program": _other,
    "another build": lambda image, configuration, name: xrt_devices.find(
        configuration, build=1
    ).overlay(name),
    "a wrong bit at the end": _bit,
}


@pytest.mark.parametrize("name", LIES)
def test_the_double_runs_no_other_programs(name, model_file, machine):
    made = Lying("double:npu2", pyxrt=xrt_devices.pyxrt, find=xrt_devices.find, index=1)
    made.lie = LIES[name]
    with on(made), pytest.raises(FirmwareError):
        prompt(model_file)
    assert re.search(r"is enabled with program memory that (holds no|begins as)", machine.errors[0])


@pytest.fixture
def build(tmp_path: Path) -> Any:
    """A copy of the build of prefill's configuration that may be damaged."""
    found = xrt_devices.find(configuration())
    shutil.copytree(found.path.parent, tmp_path / "build")
    return xrt_devices.Xclbin(tmp_path / "build" / found.path.name, dict(found.manifest))


def _damages() -> dict[str, tuple[Any, str]]:
    def truncated(build: Any) -> None:
        path = build.path.with_name("norm.overlay.bin")
        path.write_bytes(path.read_bytes()[:-16])

    def longer(build: Any) -> None:
        path = build.path.with_name("norm.overlay.bin")
        path.write_bytes(path.read_bytes() + bytes(16))

    return {
        "missing": (
            lambda build: build.path.with_name("norm.overlay.bin").unlink(),
            r"is not in its build \(.*norm\.overlay\.bin: No such file",
        ),
        "truncated": (truncated, r"has \d+ bytes in .*build, streams load \d+;"),
        "longer": (longer, r"has \d+ bytes in .*build, streams load \d+;"),
        "empty": (
            lambda build: build.path.with_name("norm.overlay.bin").write_bytes(b""),
            r"has 0 bytes in .*build, streams load \d+;",
        ),
        "of an older version": (
            lambda build: build.manifest.update(overlays=[]),
            r"is not part of .*build;",
        ),
    }


@pytest.mark.parametrize("damage", _damages())
def test_builds_without_their_programs_are_refused(damage, build, model_file):
    act, said = _damages()[damage]
    act(build)
    match = (
        rf'^\[overlay_image\] program "\w+" of configuration "prefill" {said}'
        r".*: npu build --device npu2 --force prefill$"
    )

    def find(about: Any) -> Any:
        return build if about.name == "prefill" else xrt_devices.find(about)

    handle = _npu.device.open_python(backend(find=find))
    with pytest.raises(MissingBuildError, match=match):
        handle.load(configuration())
    with on(backend(find=find)), pytest.raises(MissingBuildError, match=match):
        prompt(model_file)


def test_two_builds_are_not_mixed(model_file, machine):
    """A model's streams hold the programs of one build, which a context of another does not run:
    neither the model after its context was given up, nor a new one beside it."""
    number = [0]

    def find(about: Any) -> Any:
        found = xrt_devices.find(about, build=number[0] if about.name == "prefill" else 0)
        return xrt_devices.Xclbin(found.path, {**found.manifest, "files": {"all": number[0]}})

    made = backend(find=find)
    with npu.device("emu:npu2", designs="array"):
        expected = prompt(model_file)
    with on(made):
        model = Model(open_source(model_file))
        assert prompt(model_file, model) == expected
        number[0] = 1
        assert prompt(model_file, model) == expected  # with the context that there is
        match = r'^\[overlay_image\] configuration "prefill" has been built again'
        with pytest.raises(MissingBuildError, match=match):
            prompt(model_file)
        made.contexts.close()
        made._current = None
        with pytest.raises(MissingBuildError, match=match.replace("overlay_image", "load")):
            prompt(model_file, model)
        number[0] = 0
        assert prompt(model_file, model) == expected


def test_a_manifest_need_not_list_programs_that_are_there(build):
    del build.manifest["overlays"]
    handle = _npu.device.open_python(backend(find=lambda _: build))
    handle.load(configuration())
    for name in PROGRAMS:
        path = build.path.with_name(f"{name}.overlay.bin")
        assert handle.overlay_image(configuration(), name) == path.read_bytes()


def test_images_of_what_is_not_built_name_the_build():
    def find(about: Any) -> Any:
        raise MissingBuildError("[load] not built; npu build")

    handle = _npu.device.open_python(backend(find=find))
    with pytest.raises(MissingBuildError, match="not built"):
        handle.overlay_image(configuration(), "norm")


@pytest.mark.parametrize(
    "value, said",
    [
        (b"1234", r'^\[overlay_image\] device ".*" gave 4 bytes as the program memory of overlay'),
        (b"12345", r"overlay_image\(\) is b'12345'; return bytes, a multiple of 4, or None$"),
        ("text", r"overlay_image\(\) is 'text'; return bytes"),
        (7, r"overlay_image\(\) is 7; return bytes"),
        (bytearray(16), r"overlay_image\(\) is bytearray.*; return bytes"),
    ],
)
def test_what_a_device_says_is_checked(value, said):
    made = Lying("double:npu2", pyxrt=xrt_devices.pyxrt, find=xrt_devices.find, index=1)
    made.lie = lambda *_: value
    handle = _npu.device.open_python(made)
    with pytest.raises(DeviceError, match=said):
        handle.overlay_image(configuration(), "norm")
    chosen = operation("prefill")
    with pytest.raises(DeviceError, match=said):
        chosen.open(handle, chosen.configuration("npu2"))
    request = dict(next(iter(chosen.examples.values())))
    with pytest.raises(DeviceError, match=said):
        chosen.submissions(chosen.configuration("npu2"), request, handle)


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_the_self_test_passes_its_prompts(generation):
    """On the double; with the programs of another build it fails them."""
    name = f"double:overlays-{next(_names)}"
    npu.register_device(name, lambda: backend(generation, name))
    with npu.device(f"emu:{generation}", designs="array") as emulated, npu.device(name) as device:
        for check in checks.checks(generation):
            if check.operation == "prefill":
                found = check.compute(device=device)
                assert checks.compare(check, found, check.compute(device=emulated)).passed
    other = f"double:overlays-{next(_names)}"
    made = Lying(
        other, pyxrt=xrt_devices.pyxrt, find=xrt_devices.find,
        index=xrt_devices.GENERATIONS.index(generation),
    )  # fmt: skip
    made.lie = LIES["another build"]
    npu.register_device(other, lambda: made)
    with npu.device(other) as device:
        report = selftest.run(device, times=False)
    failed = [row for row in report["checks"] if not row["passed"]]
    assert {row["operation"] for row in failed} == {"prefill"} and len(failed) == 2
    assert all(row["error"].startswith("[wait]") for row in failed)


def test_prompts_are_measured(machine):
    """The self-test runs streams of examples as they are, with this build's programs."""
    name = f"double:overlays-{next(_names)}"
    npu.register_device(name, lambda: backend("npu2", name))
    cases = [case for case in measure.cases() if case.operation == "prefill"]
    assert len(cases) == 3
    with npu.device(name) as device:
        for case in cases[1:]:  # the small ones
            assert measure.measure(device, case, runs=1).first > 0
    assert not machine.errors
