"""Asserts that tests/golden holds exactly the files of its manifest, byte for byte, each with an
origin. After an intended change: python tests/golden/manifest.py."""

from __future__ import annotations

import json
import runpy

from golden_files import GOLDEN


def test_the_manifest_is_what_the_folder_holds() -> None:
    written = json.loads((GOLDEN / "MANIFEST.json").read_text())
    found = runpy.run_path(str(GOLDEN / "manifest.py"))["contents"]()
    assert sorted(written["files"]) == sorted(found["files"])
    assert written == found


def test_every_folder_has_an_origin() -> None:
    written = json.loads((GOLDEN / "MANIFEST.json").read_text())
    assert {name.split("/")[0] for name in written["files"]} == set(written["origins"])
